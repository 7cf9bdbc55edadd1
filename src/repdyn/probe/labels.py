"""Classes and topics that are added to the tokens of a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from repdyn.probe.class_names import validate_word_classes
from repdyn.probe.content import class_tensors, topic_tensor
from repdyn.probe.sampling import SampledTokens
from repdyn.probe.word_classes import TokenWords


class LabelledTokens(SampledTokens):
    """Methods of a probe that return it with classes or topics of its tokens."""

    def with_classes(self, classes: Mapping[str, Any]) -> Self:
        """Return the probe with classes added; a class of the same name is replaced.

        Args:
            classes: by name, a bool for each token in the order of ``tokens``: a tensor, an array or a list.
                ``members & ~probe.is_sink`` excludes first positions and special tokens.

        Raises:
            ValueError: an invalid name, another type or length, or too few tokens in a class.
        """
        return replace(cast(Any, self), classes={**self.classes, **class_tensors(classes)})

    def with_words(self, words: TokenWords, classes: Sequence[str]) -> Self:
        """Return the probe with word classes added, which exclude first positions and special tokens.

        Args:
            words: the words of all tokens.
            classes: among "function" (English function words), "content" (all other words), "frequent" (the most
                frequent words, which make up half of the text) and "rare" (the least frequent ones, the last 10 % of
                it).

        Raises:
            ValueError: unknown classes, a text in which they cannot be determined, or too few tokens in one.
        """
        validate_word_classes(classes)
        return self.with_classes({name: members & ~self.is_sink for name, members in words.classes(classes).items()})

    def with_topics(self, topics: Any) -> Self:
        """Return the probe with topics of its tokens, which replace any it has.

        Args:
            topics: (n_tokens,) integers in the order of ``tokens``, -1 for none: a tensor, an array or a list.

        Raises:
            ValueError: another type or length, or no token has a topic.
        """
        return replace(cast(Any, self), topics=topic_tensor(topics))
