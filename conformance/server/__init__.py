"""A server with the tools, prompts and resources that the official conformance suite expects.

    __main__ ──> fixture ──> plain_tools, asking_tools, prompts, resources
                               └──> asking (the client), changes (of the lists), samples

It speaks both protocols over stdio and Streamable HTTP, with the official SDK. The descriptions of
the suite's scenarios specify each fixture, including its texts.
"""
