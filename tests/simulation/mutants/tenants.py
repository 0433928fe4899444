"""Faults in what is whose: KV, answers, passages, keys and their limits."""

from __future__ import annotations

from tests.simulation.mutants.mutant import Mutant

TENANTS = (
    Mutant(
        "KV is everybody's",
        "shared.blocks.block_hash",
        "hasher.update(tenant.encode())",
        'hasher.update(b"")',
    ),
    Mutant(
        "a kept answer is everybody's",
        "services.gateway.prompt.response_key",
        "    rest = replace(\n        request,\n",
        '    request = replace(request, tenant="")\n    rest = replace(\n        request,\n',
    ),
    Mutant(
        "a corpus is everybody's",
        "shared.config.named_corpus",
        "return not self.tenants or tenant in self.tenants",
        "return True",
    ),
    Mutant(
        "anybody may cancel by an id",
        "services.gateway.session.session_registry",
        "own = [session for session in named if session.request.tenant == tenant]",
        "own = named",
    ),
    Mutant(
        "requests of a key are not counted",
        "services.gateway.keys.rate_limits",
        "            record.take(1, amount)\n",
        "            record.take(0, amount)\n",
    ),
    Mutant(
        "what another gateway lets in is not counted",
        "services.gateway.keys.key_desk",
        "                if not self._keeper.begin(account, gateway, uses, tokens):\n"
        "                    return KeyKeptElsewhere()\n",
        "                pass\n",
    ),
    Mutant(
        "a key that was taken out goes on counting",
        "services.gateway.keys.keys_in_force",
        "        if signature == self._signature:\n",
        "        if signature is not None:\n",
    ),
    Mutant(
        "a file of keys that cannot be used lets nobody in",
        "services.gateway.keys.keys_in_force",
        "            metrics.API_KEYS_STALE.set(1)\n",
        "            metrics.API_KEYS_STALE.set(1)\n            self._keys = ApiKeys(())\n",
    ),
    Mutant(
        "a prompt that lacks its passages does not say so",
        "services.gateway.prompt.preparation",
        "            degraded=read.found.degraded,\n",
        '            degraded="",\n',
    ),
    Mutant(
        "who may not do without passages does",
        "services.gateway.prompt.preprocessor",
        "            if is_final(error) or not question.may_degrade or self._budget.first_token.expired():\n",
        "            if is_final(error):\n",
    ),
    Mutant(
        "an earlier answer loses its last token",
        "services.gateway.scope.session_state",
        "        self.log.append(ids, text)\n        self.finish, self.kept = finish, True",
        "        self.log.append(ids[:-1], text)\n        self.finish, self.kept = finish, True",
    ),
)
