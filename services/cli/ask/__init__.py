"""Commands that talk with a gateway over gRPC.

gateway_channel    where the gateway is, and the channel to it
stream_place       up to where an answer has come, for another gateway to go on
generate_call      one answer: its events, its interrupt
retrieval_options  options about passages, shared by commands
trimming_options   options about budgets of the prompt
piped_text         what is piped into `ask`
ask_request        the options of `ask`, as a request
ask                one prompt
search             passages alone
served_models      which models there are
saved_chat         a conversation as a file
chat_commands      the lines of a conversation that begin with a slash
chat_session       a conversation and its turns
line_input         what is typed, message by message
chat_history       what was typed in earlier sessions
line_editor        a line that is edited
chat               a conversation on a terminal
"""
