"""The servers that are measured: Penstock by gRPC, or anything that speaks one of OpenAI's interfaces.

target         what a call is, what comes of it, and how it may end
event_stream   server-sent events, as bytes come
openai_words   bodies and chunks of the three interfaces
openai_target  calls over HTTP
grpc_target    calls over Penstock's own contract
probe          the model that is there, and the characters of its tokens
"""
