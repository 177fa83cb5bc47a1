"""Authentication of HTTP clients by JWTs and API keys.

Read in this order: claims, signatures, key_sets, api_keys, tokens, authenticator.
"""
