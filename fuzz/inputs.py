"""Inputs of the fuzz targets: seeds with a few random replacements."""

import atheris


def mutated_text(provider: atheris.FuzzedDataProvider, seeds: list[str]) -> str:
    """Return a seed with a few random replacements, or any text."""
    if provider.ConsumeBool():
        return provider.ConsumeUnicodeNoSurrogates(400)
    text = seeds[provider.ConsumeIntInRange(0, len(seeds) - 1)]
    for _ in range(provider.ConsumeIntInRange(1, 4)):
        start = provider.ConsumeIntInRange(0, len(text))
        length = provider.ConsumeIntInRange(0, 20)
        text = text[:start] + provider.ConsumeUnicodeNoSurrogates(12) + text[start + length :]
    return text


def mutated_bytes(provider: atheris.FuzzedDataProvider, seeds: list[bytes]) -> bytes:
    """Return a seed with a few random replacements, or any bytes."""
    if provider.ConsumeBool():
        return provider.ConsumeBytes(400)
    data = seeds[provider.ConsumeIntInRange(0, len(seeds) - 1)]
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        start = provider.ConsumeIntInRange(0, len(data))
        length = provider.ConsumeIntInRange(0, 20)
        data = data[:start] + provider.ConsumeBytes(12) + data[start + length :]
    return data
