"""Make retrieval_set.json: the benchmark's sessions and questions, from the talks in talk/*.txt.

usage: make_retrieval_set.py [--check]      --check: only say whether the file is up to date

What people and the assistant say, and every question, is written by hand in the talks. Added
here, with a fixed seed, is what surrounds it in a real transcript: files read, words looked up,
tests run, commits. It never answers a question, but repeats the talk's names and paths.

A talk is lines that begin with a mark; other lines continue the one before:

    ## project /folder stack language   (once per file; later `## project` alone goes back to it)
    files: a.py b.py                    of the project
    == id 2026-01-12T09:14 title        a session
    >>label prompt                      the label names the turn for questions; without one, the
                                        session's prompts are p1, p2..., responses r1, tools t1
    <<label response
    $$label Tool command or path        more lines: the text that is written or edited
    %% result of the tool before
    ??label,label kind: question        gold turns of the session above, or session.label

Where a question is literally a name, path, command, error or phrase (LITERAL_KINDS), every turn
of the talks that holds it word for word is gold, too.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SET_FILE = HERE / "retrieval_set.json"
SEED = 20260331

KINDS = (
    "ident",
    "error",
    "path",
    "command",
    "tool",
    "code",
    "quoted",
    "exclude",
    "typo",
    "paraphrase",
    "decision",
    "reversed",
    "followup",
    "date",
    "neardup",
    "mixed",
    "ko-ko",
    "ja-ja",
    "zh-zh",
    "ko-en",
    "ja-en",
    "zh-en",
    "en-cjk",
)
LITERAL_KINDS = ("ident", "error", "path", "command", "quoted")
# A quick run asks this many questions of each kind, over all sessions.
QUICK_PER_KIND = 3

MARK = re.compile(r"(##|==|>>|<<|\$\$|%%|\?\?|files:)(.*)", re.DOTALL)
TOOL_FIELDS = {
    "Bash": "command",
    "Grep": "pattern",
    "Read": "file_path",
    "Edit": "file_path",
    "Write": "file_path",
}
MARK_LETTERS = {">>": "p", "<<": "r", "$$": "t"}
NAME_IN_TALK = re.compile(r"`([A-Za-z_][\w.:/-]{4,40})(?:\(.*?\))?`")

Json = dict[str, Any]


@dataclass
class Project:
    name: str
    cwd: str
    stack: str
    language: str
    files: list[str] = field(default_factory=list)


@dataclass
class Session:
    id: str
    project: Project
    time: datetime
    title: str
    turns: list[Json] = field(default_factory=list)


# --- reading the talks ---


def read_talks() -> tuple[list[Session], list[Json]]:
    """Return the sessions and questions of all talks, in the order of their files."""
    projects: dict[str, Project] = {}
    sessions: list[Session] = []
    questions: list[Json] = []
    for path in sorted((HERE / "talk").glob("*.txt")):
        project: Project | None = None
        session: Session | None = None
        for mark, text in split_marks(path.read_text("utf-8")):
            if mark == "##":
                name, *rest = text.split()
                if rest:
                    cwd, stack, language = rest
                    projects[name] = Project(name, cwd, stack, language)
                project = projects[name]
            elif mark == "files:":
                assert project, path
                project.files = text.split()
            elif mark == "==":
                assert project, path
                id, time, title = text.split(maxsplit=2)
                session = Session(id, project, datetime.fromisoformat(time), title)
                sessions.append(session)
            elif mark == "??":
                questions.append(parse_question(text, session.id if session else ""))
            else:
                assert session, path
                add_turn(session, mark, text)
    return sessions, questions


def split_marks(text: str) -> list[tuple[str, str]]:
    """Return the marks of a talk with their texts; a line without a mark continues the last one."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if (match := MARK.fullmatch(line)) and not line.startswith(("## ", "== ")):
            found.append((match[1], match[2].rstrip()))
        elif match and is_heading_of_talk(line):
            found.append((match[1], match[2].strip()))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return [(mark, text.rstrip()) for mark, text in found]


def is_heading_of_talk(line: str) -> bool:
    """Say whether a "## " or "== " line is the talk's own, and not Markdown in an answer."""
    return bool(re.fullmatch(r"## [a-z]+(-[a-z]+)?( /\S+ \w+ \w\w)?|== [\w-]+ \d{4}-\S+ .*", line))


def add_turn(session: Session, mark: str, text: str) -> None:
    if mark == "%%":
        session.turns[-1]["result"] = text.strip()
        return
    label, _, said = re.fullmatch(r"(\w*)( ?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    same_mark = sum(turn["mark"] == mark for turn in session.turns)
    label = label or f"{MARK_LETTERS[mark]}{same_mark + 1}"
    turn: Json = {"id": f"{session.id}.{label}", "mark": mark}
    if mark == "$$":
        first, _, more = said.partition("\n")
        tool, _, value = first.partition(" ")
        turn |= {"kind": "tool", "tool": tool, "input": {TOOL_FIELDS[tool]: value}}
        if more:
            turn["input"]["new_string" if tool == "Edit" else "content"] = more
    else:
        turn |= {"kind": "prompt" if mark == ">>" else "response", "text": said}
    session.turns.append(turn)


def parse_question(text: str, session_id: str) -> Json:
    match = re.fullmatch(r"([\w.,-]+) ([a-z-]+): (.*)", text, re.DOTALL)
    assert match, text
    gold = [label if "." in label else f"{session_id}.{label}" for label in match[1].split(",")]
    return {"kind": match[2], "query": match[3].strip(), "gold": gold}


# --- what surrounds the talk ---

SMALL_TALK = {
    "en": """\
commit this | Committed as `{hash}`: {title}.
run the tests again | All green: {count} passed in {seconds} s.
thanks, anything left to do here? | Nothing that blocks. I'd look at the log tomorrow.
push it | Pushed to `{branch}`.
ok next | Ready.
wait, show me the diff first | It touches {files} files, {count} lines added, {seconds} removed.""",
    "ko": """\
커밋해줘 | `{hash}`로 커밋했습니다: {title}
테스트 다시 돌려봐 | 전부 통과했습니다. {count}건, {seconds}초.
고마워요 | 네, 더 필요하면 말씀해 주세요.
푸시해줘 | `{branch}`에 푸시했습니다.""",
    "ja": """\
コミットして | `{hash}` としてコミットしました：{title}
もう一度テストを回して | {count}件すべて通りました（{seconds}秒）。
ありがとう | どういたしまして。
pushして | `{branch}` に push しました。""",
    "zh": """\
提交一下 | 已提交 `{hash}`：{title}
再跑一遍测试 | 全部通过，{count} 个用例，{seconds} 秒。
谢谢 | 不客气。
推上去 | 已推送到 `{branch}`。""",
}
LOOKING = {
    "en": (
        "Let me look at the code first.",
        "I'll check where this is used.",
        "Let me read {file}.",
    ),
    "ko": (
        "먼저 코드를 보겠습니다.",
        "어디에서 쓰이는지 확인할게요.",
        "{file} 파일을 읽어 보겠습니다.",
    ),
    "ja": ("まずコードを見ます。", "どこで使われているか確認します。", "{file} を読みます。"),
    "zh": ("我先看一下代码。", "我查一下哪里用到了。", "我读一下 {file}。"),
}
TESTS = {
    "python": "pytest -q",
    "typescript": "npm test -- --run",
    "go": "go test ./...",
    "rust": "cargo test --quiet",
    "kotlin": "./gradlew test",
    "swift": "swift test",
}
CODE = {
    "python": """\
import logging
logger = logging.getLogger(__name__)
def NAME(ARG: Any) -> None:
    if not ARG:
        return
    logger.info("NAME %s", ARG)
    result = NAME(ARG)
    return result""",
    "typescript": """\
import type { State } from './types'
export function NAME(ARG: State) {
  if (!ARG) return
  const next = NAME(ARG)
  return next
}
export default NAME""",
    "go": """\
package internal
import "context"
func NAME(ctx context.Context, ARG string) error {
	if ARG == "" {
		return nil
	}
	return NAME(ctx, ARG)
}""",
    "rust": """\
use std::io;
pub fn NAME(ARG: &str) -> io::Result<()> {
    if ARG.is_empty() {
        return Ok(());
    }
    NAME(ARG)
}""",
    "kotlin": """\
package shop
@Service
class NAME(private val ARG: Repository) {
    @Transactional
    fun run() = ARG.findAll()
}""",
    "swift": """\
import Foundation
struct NAME {
    let ARG: String
    func run() async throws {
        try await NAME.shared.load(ARG)
    }
}""",
}
ARGUMENTS = ("value", "item", "state", "config", "row", "request", "options", "batch")
BRANCHES = ("main", "fix-1", "wip", "next", "review-2")


def surround(session: Session, rng: random.Random) -> None:
    """Add tool calls before answers, and small talk at the end, as a real session has them."""
    names = [
        Path(file).stem for file in session.project.files
    ]  # looked up: only what was said before
    busy = rng.choice((1, 1, 1, 2, 2, 3))
    turns: list[Json] = []
    for turn in session.turns:
        if turn["kind"] == "response" and turns and turns[-1]["kind"] == "prompt":
            if rng.random() < 0.3:
                file = rng.choice(session.project.files)
                words = rng.choice(LOOKING[session.project.language])
                turns.append({"id": "", "kind": "response", "text": words.format(file=f"`{file}`")})
            for _ in range(busy * rng.choice((0, 1, 1, 1, 2, 3, 4))):
                turns.append(make_tool_call(session.project, names, rng))
        turns.append(turn)
        names += NAME_IN_TALK.findall(str(turn.get("text", "")))
    talk = SMALL_TALK[session.project.language].splitlines()
    rng.shuffle(talk)
    for exchange in talk[: rng.choice((1, 1, 2, 2, 3))]:
        prompt, answer = exchange.split(" | ")
        turns.append({"id": "", "kind": "prompt", "text": prompt})
        for _ in range(rng.choice((0, 1, 1, 2))):
            turns.append(make_tool_call(session.project, names, rng))
        values = {
            "hash": f"{rng.getrandbits(28):07x}",
            "title": session.title,
            "count": rng.randint(12, 240),
            "seconds": rng.randint(2, 48),
            "branch": rng.choice(BRANCHES),
            "files": rng.randint(2, 9),
        }
        turns.append({"id": "", "kind": "response", "text": answer.format(**values)})
    session.turns = turns


def make_tool_call(project: Project, names: list[str], rng: random.Random) -> Json:
    """Return one tool call that looks at the project without learning anything."""
    file, name = rng.choice(project.files), rng.choice(names)
    kind = rng.choice(("Read", "Read", "Grep", "Grep", "tests", "status"))
    if kind == "Read":
        lines = CODE[project.stack].splitlines()
        stem = re.sub(r"\W", "_", Path(name).stem)
        body = [rng.choice(lines) for _ in range(rng.randint(6, 24))]
        shown = [line.replace("NAME", stem).replace("ARG", rng.choice(ARGUMENTS)) for line in body]
        result = "\n".join(f"{n:6}→{line}" for n, line in enumerate(shown, rng.randint(1, 200)))
        return _tool("Read", file, result)
    if kind == "Grep":
        hits = sorted(rng.sample(project.files, rng.randint(1, min(4, len(project.files)))))
        return _tool(
            "Grep", name, "\n".join(f"{hit}:{rng.randint(3, 240)}: {name}" for hit in hits)
        )
    if kind == "tests":
        return _tool(
            "Bash",
            TESTS[project.stack],
            f"{rng.randint(20, 240)} passed in {rng.randint(1, 60)}.{rng.randint(10, 99)}s",
        )
    changed = sorted(rng.sample(project.files, 2))
    return _tool("Bash", "git status --short", "\n".join(f" M {hit}" for hit in changed))


def _tool(name: str, value: str, result: str) -> Json:
    return {
        "id": "",
        "kind": "tool",
        "tool": name,
        "input": {TOOL_FIELDS[name]: value},
        "result": result,
    }


# --- the whole ---


def make_set() -> Json:
    """Return the set as it is written: sessions with their turns, and questions."""
    sessions, questions = read_talks()
    written = []
    for session in sorted(sessions, key=lambda s: (s.time, s.id)):
        rng = random.Random(f"{SEED} {session.id}")
        surround(session, rng)
        time = session.time
        for number, turn in enumerate(session.turns, 1):
            time += timedelta(seconds=rng.randint(8, 150))
            turn["id"] = turn["id"] or f"{session.id}.around{number}"
            turn.pop("mark", None)
            turn["time"] = time.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        written.append(
            {
                "id": session.id,
                "project": session.project.name,
                "cwd": session.project.cwd,
                "title": session.title,
                "turns": session.turns,
            }
        )
    questions.sort(key=lambda q: KINDS.index(q["kind"]))
    for question in questions:
        if question["kind"] in LITERAL_KINDS:
            add_literal_gold(question, written)
    mark_quick(questions)
    check_set(written, questions)
    return {"sessions": written, "questions": questions}


def add_literal_gold(question: Json, sessions: list[Json]) -> None:
    """Add to a question's gold the turns of the talks that hold it word for word."""
    wanted = " ".join(question["query"].replace('"', "").lower().split())
    for session in sessions:
        for turn in session["turns"]:
            if ".around" not in turn["id"] and turn["id"] not in question["gold"]:
                parts = [
                    turn.get("text", ""),
                    *turn.get("input", {}).values(),
                    turn.get("result", ""),
                ]
                if wanted in " ".join(" ".join(parts).lower().split()):
                    question["gold"].append(turn["id"])


def mark_quick(questions: list[Json]) -> None:
    """Mark the questions of a quick run: of each kind a few, spread over the projects."""
    for kind in KINDS:
        ours = [q for q in questions if q["kind"] == kind]
        step = max(1, len(ours) // QUICK_PER_KIND)
        for question in ours[::step][:QUICK_PER_KIND]:
            question["quick"] = True


def check_set(sessions: list[Json], questions: list[Json]) -> None:
    """Raise AssertionError where a question cannot be meant as it is written."""
    turns = {turn["id"]: turn for session in sessions for turn in session["turns"]}
    assert len(turns) == sum(len(session["turns"]) for session in sessions), "a label twice"
    seen = Counter((q["query"]) for q in questions)
    assert max(seen.values()) == 1, seen.most_common(1)
    for question in questions:
        for gold in question["gold"]:
            assert gold in turns, (gold, question)
            text = json.dumps(turns[gold], ensure_ascii=False).replace('\\"', '"').lower()
            query = question["query"].lower()
            if question["kind"] == "quoted":
                for phrase in re.findall(r'"([^"]+)"', query):
                    assert phrase in text, question
            if question["kind"] == "exclude":
                for word in re.findall(r"(?:^|\s)-(\S+)", query):
                    assert word not in text, (word, question)


def render_set(made: Json) -> str:
    """Return the file's text: one session or question a line, for diffs to be read."""
    parts = []
    for name in ("sessions", "questions"):
        rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in made[name])
        parts.append(f' "{name}": [\n{rows}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    made = make_set()
    text = render_set(made)
    if "--check" in sys.argv:
        current = SET_FILE.read_text("utf-8") if SET_FILE.exists() else ""
        print(
            "up to date"
            if current == text
            else f"{SET_FILE.name} is not what the talks say: run me"
        )
        return int(current != text)
    SET_FILE.write_text(text, "utf-8")
    lengths = sorted(len(session["turns"]) for session in made["sessions"])
    print(
        f"{len(lengths)} sessions, {sum(lengths)} turns ({lengths[0]} to {lengths[-1]}), "
        f"{len(made['questions'])} questions"
    )
    for kind, count in Counter(q["kind"] for q in made["questions"]).items():
        print(f"{count:5} {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
