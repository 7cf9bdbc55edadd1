from text_fixtures import cache, enwik8_prefix, make_dump, real_data  # noqa: F401  (fixtures)
