"""Terminal output: summaries, comparisons and lists of what a store holds."""
