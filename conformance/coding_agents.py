"""Codex and Claude Code, started by `narthex launch` against a running Narthex server.

    python coding_agents.py NARTHEX MODEL     # `cargo xtask clients` installs the pinned versions and puts them on the PATH

Prints a line per check and a count; exits 1 where one failed. Both agents send their full instructions and tools, which
have 10,000 to 20,000 tokens. MODEL must have a context for them, and a server of the same store must have loaded it. The
checks are about the protocol: a small model cannot do what the agents ask for. They do not limit its answers, so they must
end by themselves.
"""
import json
import os
import subprocess
import sys
import tempfile

from checks import check, run

NARTHEX, MODEL = os.path.abspath(sys.argv[1]), sys.argv[2]
QUESTION = "Say hello."
TIMEOUT = 1800


def launch(folder, agent, *arguments):
    """Runs an agent with a home folder of its own, and returns its standard output."""
    environment = {**os.environ, "HOME": folder, "IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1"}
    command = [NARTHEX, "launch", agent, "-m", MODEL, "--", *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.stdout


@check
def codex_answers_and_continues_from_the_cache():
    with tempfile.TemporaryDirectory() as folder:
        turns = []
        for command in (["exec"], ["exec", "resume", "--last"]):
            arguments = [*command, "--skip-git-repo-check", "--json", QUESTION]
            events = [json.loads(line) for line in launch(folder, "codex", *arguments).splitlines()]
            assert not [event for event in events if "error" in event["type"] or "failed" in event["type"]], events
            items = [event["item"] for event in events if event["type"] == "item.completed"]
            assert any(item["type"] == "agent_message" and item["text"] for item in items), items
            turns += [event["usage"] for event in events if event["type"] == "turn.completed"]
        print(f"  {turns}")
        first, second = turns
        assert second["cached_input_tokens"] > 0.9 * first["input_tokens"], turns


@check
def claude_code_answers_and_continues_from_the_cache():
    with tempfile.TemporaryDirectory() as folder:
        turns = []
        for more in ([], ["--continue"]):
            answer = json.loads(launch(folder, "claude", *more, "-p", QUESTION, "--output-format", "json"))
            assert answer["subtype"] == "success" and not answer["is_error"], answer
            turns.append(answer["usage"])
        first, second = ({name: turn[f"{name}_tokens"] for name in ("input", "cache_read_input")} for turn in turns)
        print(f"  {first} {second}")
        assert second["cache_read_input"] > 0.9 * first["input"], turns


if __name__ == "__main__":
    sys.exit(run())
