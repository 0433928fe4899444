"""Write the parts of an answer that OpenAI has no place for: under `penstock`, where asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.penstock_options import FIELD, PenstockOptions


class EndedRequest(Protocol):
    """A request of the call, when it has ended."""

    @property
    def prompt(self) -> pb.PromptInfo: ...
    @property
    def end(self) -> pb.Terminal: ...


def penstock_part(options: PenstockOptions, requests: Iterable[EndedRequest]) -> dict[str, Any]:
    """Each choice is a request of its own; nothing where nothing of it was asked for. Who asks for a virtual
    model is told which one answered, and everybody what was left out of a prompt."""
    requests = list(requests)
    asked = options.timeline or "retrieval" in options.fields or "cache" in options.fields
    told = (ended.prompt.HasField("model_choice") or ended.prompt.trimmed for ended in requests)
    if not asked and not any(told):
        return {}
    described = [_describe(index, ended, options.timeline) for index, ended in enumerate(requests)]
    return {FIELD: {"requests": described}}


def _describe(index: int, ended: EndedRequest, timeline: bool) -> dict[str, Any]:
    prompt, end = ended.prompt, ended.end
    described: dict[str, Any] = {
        "index": index,
        "request_id": prompt.request_id,
        "seed": prompt.seed,
        "degraded": prompt.degraded,
        "warning": prompt.warning,
        "retrieval_query": prompt.retrieval_query,
        "passages": [_plain(passage) for passage in prompt.passages],
        "citations": [_plain(citation) for citation in end.citations],
        "usage": _plain(end.usage),
    }
    if prompt.HasField("cached"):
        described["cached"] = {
            "request_id": prompt.cached.request_id,
            "age_ms": prompt.cached.age_ms,
            "similarity": prompt.cached.similarity,
        }
    if prompt.HasField("model_choice"):
        described["model_choice"] = _plain(prompt.model_choice) | {"model": prompt.model}
    if prompt.trimmed:
        described["trimmed"] = [_plain(part) for part in prompt.trimmed]
    if prompt.coalesced_with:
        described["coalesced_with"] = prompt.coalesced_with
    if timeline:
        described["timeline"] = {
            "ttft_us": end.timeline.ttft_us,
            "total_us": end.timeline.total_us,
            "useful_us": end.timeline.useful_us,
            "region": end.timeline.region,
            "phases": [
                {"name": phase.name, "start_us": phase.start_us, "duration_us": phase.duration_us}
                for phase in end.timeline.phases
            ],
        }
    return described


def _plain(
    message: pb.RetrievedPassage | pb.Citation | pb.Usage | pb.ModelChoice | pb.TrimmedPart,
) -> dict[str, Any]:
    """Return all fields, by the contract's names."""
    plain: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return plain
