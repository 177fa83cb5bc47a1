"""How well tools are found: real tools, labelled queries, and ten thousand of them."""
