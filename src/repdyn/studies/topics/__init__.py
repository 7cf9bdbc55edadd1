"""Topic structure of finished models on real text; see docs/topics.md."""
