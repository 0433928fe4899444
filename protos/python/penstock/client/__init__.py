"""Answers of Penstock as they are generated.

    from penstock.client import Client

    with Client("127.0.0.1:50051") as client, client.generate("Once upon a time") as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)

`AsyncClient` is the same for asyncio. Messages are those of the contract, penstock/v1/inference.proto.
"""

from penstock.client._proto.inference_pb2 import (
    AgentHints,
    ChatMessage,
    Citation,
    Embedding,
    FinishReason,
    Model,
    Outcome,
    PromptInfo,
    RankedText,
    RerankResponse,
    RetrievedPassage,
    RetrieveResponse,
    Terminal,
    TextDelta,
    Timeline,
    Tool,
    ToolCall,
    Usage,
)
from penstock.client.async_client import AsyncClient
from penstock.client.async_stream import AsyncStream
from penstock.client.client import Client
from penstock.client.errors import (
    Cancelled,
    Dropped,
    Expired,
    InvalidRequest,
    NotFound,
    PenstockError,
    ServerError,
    Shed,
    StreamLost,
    Unauthenticated,
    Unavailable,
)
from penstock.client.request import (
    GenerateOptions,
    Priority,
    Prompt,
    RetrieveOptions,
    SamplingOptions,
    ToolChoiceName,
    ToolOptions,
    Turn,
)
from penstock.client.retry import Retry
from penstock.client.stream import Stream

__all__ = [
    "AgentHints",
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "ChatMessage",
    "Citation",
    "Client",
    "Dropped",
    "Embedding",
    "Expired",
    "FinishReason",
    "GenerateOptions",
    "InvalidRequest",
    "Model",
    "NotFound",
    "Outcome",
    "PenstockError",
    "Priority",
    "Prompt",
    "PromptInfo",
    "RankedText",
    "RerankResponse",
    "RetrieveOptions",
    "RetrieveResponse",
    "RetrievedPassage",
    "Retry",
    "SamplingOptions",
    "ServerError",
    "Shed",
    "Stream",
    "StreamLost",
    "Terminal",
    "TextDelta",
    "Timeline",
    "Tool",
    "ToolCall",
    "ToolChoiceName",
    "ToolOptions",
    "Turn",
    "Unauthenticated",
    "Unavailable",
    "Usage",
]
