"""The sampling study: models, measurements, tables and figures."""
