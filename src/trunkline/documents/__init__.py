"""Files that people write, in TOML or JSON: what they say, and where they are wrong.

Read it in this order: lines and errors (where something stands, and what is wrong with it);
toml_lines, json_lines and parse (text to tables); reading (a file to its text); fit (tables against
types). What the tables mean is the affair of those who read them: `config` and `sources`.
"""
