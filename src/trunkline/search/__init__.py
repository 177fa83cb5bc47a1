"""Find tools by what they do: words, synonyms, matching and ranking."""
