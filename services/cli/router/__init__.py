"""`penstock router`: look after what chooses among several models.

train               a classifier of hard questions
accepted_questions  questions, and what is accepted as an answer
asked_answers       what two models answer to them
cascade_curve       what a cascade of both gives and costs, by threshold
cascade_words       how that is said
calibrate           the threshold of a cascade
router              both commands
"""
