"""Files that people write in TOML or JSON: what they say, and where they are wrong.

Read it in this order: errors (where a key stands, and what is wrong with it); parser (a file to
tables); formats (of single values); validation (tables against types). What the tables mean is left
to `config`, `backends` and `sources`.
"""
