"""Who may speak in a chat."""

from __future__ import annotations

CONTRACT_ROLES = ("system", "user", "assistant")
"""What a client may send: the gRPC contract promises these for every model."""

TEMPLATE_ROLES = (*CONTRACT_ROLES, "developer", "tool")
"""What the tokenizer renders: chat templates of some models know these two as well, others refuse them."""
