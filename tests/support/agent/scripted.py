#!/usr/bin/env python3
"""A scripted agent: an executable that speaks as Claude Code or OpenCode does, and does what it is told.

It stands in for the CLI wherever a test (or bin/demo) needs an agent but no model: set a lane's `command` to
`[sys.executable, ".../tests/support/agent/scripted.py"]`. Standard library only, one file, so it runs in any
Python 3.11 and behind bubblewrap too (the sandbox shows the directories of a command's files).

It takes the CLI's options, reads the prompt from standard input, prints the CLI's event stream, keeps sessions
under $HOME as claude does (an id in use and an unknown --resume are refused in claude's own words) and, like
claude, on SIGTERM ends its tool, prints a success that is none, and exits with 0. Called with `run` as its
first argument it prints OpenCode's stream instead and dies of the signal.

WHAT IT DOES is a script, a JSON object. The first of these is used:

    a line of the prompt:   scripted-agent: {"steps": [...]}      so an issue's body can say it
    $SCRIPTED_AGENT         the object itself, or the path of a file that holds it
    nothing                 by the prompt's kind: changes README.md and reports done; or writes a plan of
                            two issues; or one finding

    {"steps": [STEP, ...], "cost": 0.01, "model": "scripted", "resume": [STEP, ...]}

With "init": false it prints no first event of its own.

A resumed session remembers its script and goes on at the first step it had not ended, or does `resume` if that
is given. In texts and paths $HOME, $TMPDIR, $WORKSPACE, $REPORT and $JOB are filled in; a path is relative to
the checkout.

    {"do": "write", "path": P, "text": T}           also "append"; directories are made
    {"do": "delete", "path": P}
    {"do": "shell", "command": C}                   as a tool would, in a session of its own
    {"do": "commit", "message": M}                  git add -A, git commit
    {"do": "report", "name": "outcome.json", "value": {...}}     or "text": T as it is
    {"do": "done", "summary": S}                    outcome.json with status done; {"do": "blocked", "question": Q}
    {"do": "say", "text": T}
    {"do": "wait_for", "path": P, "seconds": 60}    until the file is there; crashes with code 3 if it never is
    {"do": "sleep", "seconds": N}    {"do": "hang"}   {"do": "ignore_term"}
    {"do": "spawn", "seconds": N, "pid_file": P}    a helper that forked twice, in its own session, deaf to TERM
                                                    ("environment": false wipes the job's mark too)
    {"do": "emit", "line": {...}} or {"do": "emit", "file": P}   events as they are
    {"do": "raw", "text": T, "times": N}            bytes without a newline, to standard output
    {"do": "stderr", "text": T}
    {"do": "environment", "path": P}                the names and values that it was given, as JSON
    {"do": "prompt", "path": P}                     what it was asked
    {"do": "fail", "as": WHAT, "resets_in": S}      usage_limit, rate_limit, overloaded, not_authenticated,
                                                    out_of_credit, turn_limit, budget_limit, unknown_model
    {"do": "linger"}                                the final event, and then it does not leave
    {"do": "exit", "code": N}    {"do": "signal", "signal": N}    end at once, without a final event

After the last step comes the final success. Each start is a line in $HOME/.scripted/starts.jsonl, and in the
file $SCRIPTED_AGENT_LOG if that is set (and can be written from where it runs): {"job", "pid", "session",
"resume", "cwd"}. A test counts agent runs by it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

Step = dict[str, Any]


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)


class Stream:
    """Claude Code's event stream."""

    def __init__(self, session: str, model: str, cost: float) -> None:
        self.session, self.model, self.cost = session, model, cost
        self.turns = 0

    def line(self, row: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()

    def event(self, **row: Any) -> None:
        self.line({**row, "session_id": self.session, "uuid": str(uuid.uuid4())})

    def begin(self) -> None:
        self.event(type="system", subtype="init", cwd=os.getcwd(), model=self.model, tools=["Bash", "Edit"])

    def _assistant(self, block: dict[str, Any], **more: Any) -> None:
        self.turns += 1
        usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 0}
        message = {"id": f"msg_{self.turns}", "role": "assistant", "content": [block], "usage": usage}
        self.event(type="assistant", message=message, **more)

    def say(self, text: str) -> None:
        self._assistant({"type": "text", "text": text})

    def tool(self, name: str, given: dict[str, Any]) -> None:
        self._assistant({"type": "tool_use", "id": f"toolu_{self.turns}", "name": name, "input": given})

    def tool_result(self, text: str, failed: bool) -> None:
        block = {"type": "tool_result", "tool_use_id": f"toolu_{self.turns - 1}", "content": text}
        self.event(type="user", message={"role": "user", "content": [{**block, "is_error": failed}]})

    def result(self, **row: Any) -> None:
        usage = {"inputTokens": 100 * self.turns, "outputTokens": 10 * self.turns, "costUSD": self.cost}
        base = {"subtype": "success", "is_error": False, "api_error_status": None, "result": "Done."}
        self.event(
            type="result",
            **{**base, "terminal_reason": "completed", "permission_denials": [], **row},
            num_turns=self.turns,
            total_cost_usd=self.cost,
            modelUsage={self.model: usage},
        )

    def success(self) -> None:
        self.say("Done.")
        self.result()

    def fail(self, what: str, step: Step) -> int:
        """The recorded shape of a failure; the exit code."""
        if what == "usage_limit":
            at = int(time.time() + float(step.get("resets_in", 3600)))
            info = {"status": "rejected", "resetsAt": at, "rateLimitType": "five_hour"}
            self.event(type="rate_limit_event", rate_limit_info=info)
        shapes: dict[str, tuple[dict[str, Any], str]] = {
            "usage_limit": ({"api_error_status": 429}, "rate_limit"),
            "rate_limit": ({"api_error_status": 429}, "rate_limit"),
            "overloaded": ({"api_error_status": 529}, "server_error"),
            "not_authenticated": ({"api_error_status": 401}, "authentication_failed"),
            "out_of_credit": ({"api_error_status": 400}, "billing_error"),
            "unknown_model": ({"api_error_status": 404}, "model_not_found"),
            "turn_limit": ({"subtype": "error_max_turns", "terminal_reason": "max_turns"}, ""),
            "budget_limit": ({"subtype": "error_max_budget_usd", "errors": ["Reached maximum budget"]}, ""),
        }
        row, error = shapes[what]
        if error:
            self._assistant({"type": "text", "text": f"API Error: {what}"}, error=error)
        self.result(is_error=True, **{"result": f"API Error: {what}", **row})
        return 1


class OpenCodeStream(Stream):
    def event(self, **row: Any) -> None:
        self.line({**row, "timestamp": int(time.time() * 1000), "sessionID": self.session})

    def begin(self) -> None:
        self.event(type="step_start", part={"type": "step-start"})

    def say(self, text: str) -> None:
        self.event(type="text", part={"type": "text", "text": text})

    def tool(self, name: str, given: dict[str, Any]) -> None:
        self._pending = (name.lower(), given)

    def tool_result(self, text: str, failed: bool) -> None:
        name, given = self._pending
        state = {"status": "error" if failed else "completed", "input": given, "output": text}
        self.event(type="tool_use", part={"type": "tool", "tool": name, "state": state})
        self._finish("tool-calls")

    def _finish(self, reason: str) -> None:
        self.turns += 1
        tokens = {"input": 100, "output": 10, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        self.event(
            type="step_finish",
            part={"type": "step-finish", "reason": reason, "tokens": tokens, "cost": self.cost},
        )

    def result(self, **row: Any) -> None:
        self._finish("stop")

    def fail(self, what: str, step: Step) -> int:
        status = {
            "rate_limit": 429,
            "usage_limit": 429,
            "overloaded": 529,
            "not_authenticated": 401,
            "out_of_credit": 402,
        }.get(what)
        data: dict[str, Any] = {"message": what, "statusCode": status, "responseHeaders": {}}
        self.event(type="error", error={"name": "APIError" if status else "UnknownError", "data": data})
        return 1


class Agent:
    def __init__(self, stream: Stream, session_file: Path, done: int, prompt: str) -> None:
        self.stream = stream
        self.prompt = prompt
        self.session_file = session_file
        self.done = done
        self.tool: subprocess.Popen[bytes] | None = None

    def run(self, steps: list[Step]) -> int:
        for index, step in enumerate(steps):
            if index < self.done:
                continue
            code = self._step(step)
            if code is not None:
                return code
            self.done = index + 1
            self._remember()
        self.stream.success()
        return 0

    def _remember(self) -> None:
        with open(self.session_file, "a") as f:
            f.write(json.dumps({"done": self.done}) + "\n")

    def _step(self, step: Step) -> int | None:
        return getattr(self, f"do_{step['do']}")({k: fill(v) for k, v in step.items()})  # type: ignore[no-any-return]

    def on_term(self, *_: object) -> None:
        """As claude does on TERM: the tool is ended, and the result claims a success."""
        if self.tool is not None:
            self.tool.kill()
        if isinstance(self.stream, OpenCodeStream):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self.stream.success()
        os._exit(0)

    def do_write(self, step: Step, mode: str = "w") -> None:
        path = Path(step["path"])
        self.stream.tool("Edit", {"file_path": str(path)})
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, mode) as f:
            f.write(step["text"])
        self.stream.tool_result("ok", False)

    def do_append(self, step: Step) -> None:
        self.do_write(step, "a")

    def do_delete(self, step: Step) -> None:
        self.do_shell({"command": f"rm -rf -- '{step['path']}'"})

    def do_shell(self, step: Step) -> None:
        self.stream.tool("Bash", {"command": step["command"]})
        self.tool = subprocess.Popen(
            ["/bin/sh", "-c", step["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = self.tool.communicate()[0].decode("utf-8", "replace")
        self.stream.tool_result(output[-4000:], self.tool.returncode != 0)
        self.tool = None

    def do_commit(self, step: Step) -> None:
        identity = "-c user.name=Agent -c user.email=agent@example.invalid"
        self.do_shell({"command": f"git add -A && git {identity} commit -q -m '{step['message']}'"})

    def do_report(self, step: Step) -> None:
        text = step["text"] if "text" in step else json.dumps(step["value"])
        (Path(os.environ["TIRELESS_REPORT"]) / step["name"]).write_text(text)

    def do_done(self, step: Step) -> None:
        value = {"status": "done", "summary": step.get("summary", "Done by the scripted agent.")}
        self.do_report({"name": "outcome.json", "value": value})

    def do_blocked(self, step: Step) -> None:
        self.do_report({"name": "outcome.json", "value": {"status": "blocked", "question": step["question"]}})

    def do_say(self, step: Step) -> None:
        self.stream.say(step["text"])

    def do_wait_for(self, step: Step) -> int | None:
        deadline = time.monotonic() + float(step.get("seconds", 60))
        while not os.path.exists(step["path"]):
            if time.monotonic() > deadline:
                print(f"never came: {step['path']}", file=sys.stderr)
                return 3
            pause(0.02)
        return None

    def do_sleep(self, step: Step) -> None:
        pause(float(step["seconds"]))

    def do_hang(self, step: Step) -> None:
        while True:
            pause(3600)

    def do_ignore_term(self, step: Step) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_spawn(self, step: Step) -> None:
        code = (
            "import os, select, signal, sys\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "if os.fork(): os._exit(0)\n"
            "path = sys.argv[2]\n"
            "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)\n"
            "select.select([], [], [], float(sys.argv[1]))\n"
        )
        env = dict(os.environ) if step.get("environment", True) else {}
        null = subprocess.DEVNULL
        argv = [sys.executable, "-I", "-S", "-c", code, str(step.get("seconds", 300)), step["pid_file"]]
        subprocess.run(argv, stdin=null, stdout=null, stderr=null, env=env, check=True)
        self.do_wait_for({"path": step["pid_file"], "seconds": 10})

    def do_emit(self, step: Step) -> None:
        if "line" in step:
            self.stream.line(step["line"])
        else:
            sys.stdout.write(Path(step["file"]).read_text())
            sys.stdout.flush()

    def do_raw(self, step: Step) -> None:
        block = step["text"].encode()
        times = int(step.get("times", 1))
        per_write = max(1, (1 << 20) // max(1, len(block)))
        while times > 0:
            os.write(1, block * min(times, per_write))
            times -= per_write

    def do_stderr(self, step: Step) -> None:
        print(step["text"], file=sys.stderr, flush=True)

    def do_environment(self, step: Step) -> None:
        Path(step["path"]).write_text(json.dumps(dict(os.environ)))

    def do_prompt(self, step: Step) -> None:
        Path(step["path"]).write_text(self.prompt)

    def do_fail(self, step: Step) -> int:
        return self.stream.fail(step["as"], step)

    def do_linger(self, step: Step) -> None:
        self.stream.success()
        self.do_hang(step)

    def do_exit(self, step: Step) -> int:
        return int(step["code"])

    def do_signal(self, step: Step) -> None:
        os.kill(os.getpid(), int(step["signal"]))


def fill(value: Any) -> Any:
    """$HOME and the like in the texts of a step."""
    if isinstance(value, dict):
        return {k: fill(v) for k, v in value.items()}
    if not isinstance(value, str):
        return value
    names = {
        "HOME": "HOME",
        "TMPDIR": "TMPDIR",
        "WORKSPACE": "PWD",
        "REPORT": "TIRELESS_REPORT",
        "JOB": "TIRELESS_JOB",
    }
    return re.sub(r"\$(HOME|TMPDIR|WORKSPACE|REPORT|JOB)\b", lambda m: os.environ.get(names[m[1]], ""), value)


def default_steps(prompt: str) -> list[Step]:
    title = next((m[1] for m in [re.search(r"^Title: (.+)$", prompt, re.M)] if m), "an issue")
    if "plan.json" in prompt:
        first = {"key": "first", "title": f"Prepare: {title}", "body": "The first half.", "depends_on": []}
        second = {"key": "second", "title": f"Finish: {title}", "body": "The rest.", "depends_on": ["first"]}
        value = {"summary": f"Two steps for: {title}", "children": [first, second]}
        return [{"do": "report", "name": "plan.json", "value": value}]
    if "findings.json" in prompt:
        finding = {"title": f"Found while looking at: {title}", "body": "Something to do.", "severity": "low"}
        return [{"do": "report", "name": "findings.json", "value": {"findings": [finding]}}]
    return [
        {"do": "say", "text": f"I shall note in README.md: {title}"},
        {"do": "append", "path": "README.md", "text": f"\n{title}\n"},
        {"do": "done", "summary": f"Noted in README.md: {title}"},
    ]


def load_script(prompt: str) -> dict[str, Any]:
    match = re.search(r"^\s*scripted-agent: (\{.*\})\s*$", prompt, re.M)
    given = match[1] if match else os.environ.get("SCRIPTED_AGENT", "")
    if given and not given.lstrip().startswith("{"):
        given = Path(given).read_text()
    script: dict[str, Any] = json.loads(given) if given else {}
    script.setdefault("steps", default_steps(prompt))
    return script


def note_start(session: str, resume: bool) -> None:
    row = {"job": os.environ.get("TIRELESS_JOB"), "pid": os.getpid(), "session": session}
    line = json.dumps({**row, "resume": resume, "cwd": os.getcwd()}) + "\n"
    own = Path(os.environ["HOME"]) / ".scripted" / "starts.jsonl"
    own.parent.mkdir(parents=True, exist_ok=True)
    for path in (own, os.environ.get("SCRIPTED_AGENT_LOG")):
        if path:
            with open(path, "a") as f:
                f.write(line)


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--session-id")
    parser.add_argument("--resume")
    parser.add_argument("--session")
    parser.add_argument("--model")
    return parser.parse_known_args(argv)[0]


def main(argv: list[str]) -> int:
    opencode = bool(argv) and argv[0] == "run"
    given = options(argv)
    resumed = given.session if opencode else given.resume
    session = resumed or given.session_id or (f"ses_{uuid.uuid4().hex}" if opencode else str(uuid.uuid4()))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    folder = Path(os.environ["HOME"]) / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", os.getcwd())
    session_file = folder / f"{session}.jsonl"
    if resumed and not session_file.exists():
        return refuse_resume(session)
    if given.session_id and session_file.exists():
        print(f"Error: Session ID {session} is already in use.", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    note_start(session, bool(resumed))
    kept = folder / f"{session}.script.json"  # the prompt of a resumed session does not repeat it
    script = json.loads(kept.read_text()) if resumed and kept.exists() else load_script(prompt)
    kept.write_text(json.dumps(script))
    done = max([0, *(json.loads(line)["done"] for line in session_file.open())]) if resumed else 0
    session_file.open("a").close()
    kind = OpenCodeStream if opencode else Stream
    stream = kind(session, given.model or script.get("model", "scripted"), float(script.get("cost", 0.01)))
    agent = Agent(stream, session_file, done, prompt)
    signal.signal(signal.SIGTERM, agent.on_term)
    if script.get("init", True):
        stream.begin()
    steps = script["steps"]
    if resumed and "resume" in script:
        steps, agent.done = script["resume"], 0
    return agent.run(steps)


def refuse_resume(session: str) -> int:
    row = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
    errors = [f"No conversation found with session ID: {session}"]
    print(json.dumps({**row, "session_id": session, "total_cost_usd": 0, "errors": errors}))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
