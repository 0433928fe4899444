"""Find the question to search for, where a conversation leans on what was said before.

In reading order: `follow_ups` tells whether a question stands alone, `question_rewriter` has a model write
it out, `searched_question` chooses between them.
"""
