"""Agents: one module an agent CLI; decoding and concluding are pure, starting and ending is shared."""

from __future__ import annotations

from tireless.agents.base import Adapter
from tireless.agents.claude_code import ClaudeCode
from tireless.agents.opencode import OpenCode
from tireless.entities import AgentKind


def adapter_for(kind: AgentKind) -> Adapter:
    adapters: dict[AgentKind, Adapter] = {
        AgentKind.CLAUDE_CODE: ClaudeCode(),
        AgentKind.OPENCODE: OpenCode(),
    }
    return adapters[kind]
