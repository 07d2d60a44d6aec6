"""Documents to train and evaluate on: a context and the branches that may follow it.

sources    texts, and which of them training may see
facts      small facts to hide in a text, and the questions that ask for them
documents  what a document is; needle documents and plain text
"""
