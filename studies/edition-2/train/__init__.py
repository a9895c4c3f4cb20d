"""How the shipped corpus, tokenizer, models and fits are made."""
