"""The function words of English, that is, of its closed word classes.

The classes follow Quirk, Greenbaum, Leech, Svartvik 1985, A Comprehensive Grammar of the English Language, chapter 2
(determiners, pronouns, prepositions, conjunctions, auxiliaries), with the particles "not", "to" and "there" and the
wh-adverbs added. A word of several classes is listed in its most frequent one. Numerals and adverbs such as "very" are
not included: their classes are open, or nearly so.

The list ignores context: the noun "will" and the month of May count as function words.
"""

from __future__ import annotations

_CLASSES = {
    "articles": "a an the",
    "determiners": """
        all another any both each either enough every few fewer fewest half least less many more most much neither no
        other others several some such that these this those what whatever which whichever whose
    """,
    "pronouns": """
        i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
        we us our ours ourselves they them their theirs themselves one oneself who whom whoever whomever none
        anybody anyone anything everybody everyone everything nobody nothing somebody someone something
    """,
    "prepositions": """
        about above across after against along alongside amid among amongst around as at before behind below beneath
        beside besides between beyond by despite down during except for from in inside into like near of off on onto
        out outside over per through throughout till toward towards under underneath until up upon via with within
        without
    """,
    "conjunctions": """
        although and because but if lest nor once or since so than though unless whereas whether while whilst yet
    """,
    "auxiliaries": """
        am are be been being is was were do does did doing done has had have having can cannot could may might must
        ought shall should will would
        ain't aren't can't couldn't didn't doesn't don't hadn't hasn't haven't isn't mightn't mustn't needn't oughtn't
        shan't shouldn't wasn't weren't won't wouldn't
    """,
    "particles": "not to there how when whenever where wherever why",
}
_CLITICS = frozenset({"s", "m", "re", "ve", "ll", "d"})

FUNCTION_WORDS = frozenset(word for words in _CLASSES.values() for word in words.split())
"""In lower case, with straight apostrophes."""


def is_function_word(word: str) -> bool:
    """Return whether a word is a function word, alone or with a contracted verb attached.

    Args:
        word: in lower case, with straight apostrophes.

    >>> [is_function_word(word) for word in ("the", "don't", "they're", "dog", "dog's")]
    [True, True, True, False, False]
    """
    stem, _, clitic = word.partition("'")
    return word in FUNCTION_WORDS or (stem in FUNCTION_WORDS and clitic in _CLITICS)
