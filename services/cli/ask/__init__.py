"""Commands that talk with a gateway over gRPC.

gateway_channel    where the gateway is, and the channel to it
generate_call      one Generate: its events, its interrupt
retrieval_options  options about passages, shared by commands
piped_text         what is piped into `ask`
ask_request        the options of `ask`, as a request
ask                one prompt
search             passages alone
chat_session       a conversation and its turns
chat               a conversation on a terminal
"""
