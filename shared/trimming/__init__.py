"""Shorten a prompt to its budgets, in pure steps that say what they have left out.

passage_sentences    passages as sentences, by their places in them
near_duplicates      sentences that say what another one has said
sentence_scores      how likely it is that a sentence answers the question
passage_compression  passages shortened to a budget of tokens
chat_summary         turns of a chat by their best sentences
chat_budget          the oldest turns of a chat that are left out for a budget
compact_text         JSON and text without space that says nothing
compact_chat         a chat written so
tool_ranking         tools by the words that a question has in common with them
tool_choice          the tools that are told, within a budget of tokens
kept_text            what is left of a passage, and where in it a part of that stands
"""
