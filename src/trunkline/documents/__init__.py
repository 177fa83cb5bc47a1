"""Files that people write in TOML or JSON: their tables, and the positions of errors.

Read it in this order: errors (where a key stands, and what is wrong with it); parser (a file to
tables); formats (of single values); validation (tables against types). What the tables mean is left
to `config`, `backends` and `sources`.
"""
