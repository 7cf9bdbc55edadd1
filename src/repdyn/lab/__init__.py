"""One-off analyses of models and of papers, made of what the package shows to any user."""
