"""python -m services.tokenizer"""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.tokenizer.config import TokenizerConfig
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("tokenizer", TokenizerConfig)

    import asyncio

    from services.tokenizer.actor import TokenizerActor
    from services.tokenizer.prompt_tokenizer import PromptTokenizer
    from shared.blocks.block_hash import BlockHasher
    from shared.process.serve_actor import serve_actor
    from shared.process.service import Service, run_service
    from shared.text.model_source import resolve_model
    from shared.text.tokenizer import TextTokenizer


async def body(service: Service[TokenizerConfig]) -> None:
    config = service.config
    source = await asyncio.to_thread(resolve_model, config.model, config.served_name)
    tokenizer = await asyncio.to_thread(TextTokenizer.load, source.path)
    service.announce_model(source.name, tokenizer_digest=source.tokenizer_digest())
    prompts = PromptTokenizer(tokenizer, BlockHasher.of(config.fleet_key), config.max_text_bytes)
    actor = service.supervisor.start(lambda: TokenizerActor(service, prompts))
    await serve_actor(service, actor)


if __name__ == "__main__":
    run_service("tokenizer", TokenizerConfig, body)
