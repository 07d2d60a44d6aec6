"""Documents to train and evaluate on: a context and the branches that may follow it.

document     what a document is
mixture      a stream of documents from several sources with weights: begin here
ruler        the thirteen tasks of RULER
documents    needle documents and plain text
corpora      the user's texts and chats
published    LongBench, BoolQ, SQuAD and HotpotQA in their file formats
prompts      how a document is put together from tokens
haystacks    text to hide things in
facts        small facts to hide in a text, and the questions that ask for them
wordings     how facts and their questions are said
vocabulary   words, names and numbers
sources      texts from package registries, and which of them training may see
tokens       pieces of text as tokens
"""
