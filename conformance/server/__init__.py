"""A server that has what the official conformance suite asks for: its tools, prompts and resources.

    __main__ ──> fixture ──> plain_tools, asking_tools, prompts, resources
                               └──> asking (the client), changes (of the lists), samples

It speaks both eras, over stdio and over Streamable HTTP, by the official SDK. What each fixture has
to do is said in the descriptions of the suite's scenarios; where they name a text, it is that one.
"""
