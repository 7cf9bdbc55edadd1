"""The sampling study: models, what is measured on them, and the tables and figures made of it."""
