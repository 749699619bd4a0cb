"""Make up a Claude Code history of any size, with things planted in it that a search should find.

usage: corpus.py MESSAGES HOME [--seed N]

Writes HOME/.claude/projects/**/*.jsonl as Claude Code writes them, and HOME/planted.json, which says
what is hidden where. The same arguments give the same bytes. One session is in memory at a time, so
a million messages need no more than ten thousand do.

A message is a line of a person, of the assistant or of a tool's result. The lines around them
(titles, snapshots, hooks, durations) come on top. Nothing here is anybody's: sentences are put
together from the lists below, in English, Korean, Japanese, Chinese, and Korean mixed with English.

A needle is a word that is nowhere else in the history, in a sentence of its own; a search for
`query` should bring up a text that holds `mark`. A key is a made-up secret of a known shape, put
together at run time so that no file of this project holds one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

SEED = 11
PLANTED_FILE = "planted.json"

# The history covers this many days and ends here; file times follow it.
LAST_DAY = datetime(2026, 10, 31, 18)
DAYS = 240

# Messages of a session: most are short, a few run all day.
SESSION_LENGTHS = (24, 36, 48, 60, 72, 96, 120, 160, 220, 360)
# A session takes at most one planted text for this many of its messages.
MESSAGES_PER_PLANT = 16
LONGEST_PLANTED_TURN = 12
LONGEST_TURN = 30

Json = dict[str, Any]

# --- words ---


def pool(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = pool("""
file test function error change request value data user module service line build table field type
config query server client list path branch version class cache message event state result call
response session index script record key row column job queue token page view button form route
handler worker parser schema migration timeout retry log metric header payload endpoint database
transaction lock thread process container image volume cluster pod secret policy role permission
group account tenant invoice order payment refund customer product price discount shipment warehouse
sensor reading alarm gauge chart dashboard report export import upload download archive backup
restore snapshot replica shard partition offset cursor batch stream buffer chunk frame packet socket
port host proxy gateway certificate domain cookie redirect template component prop hook store
reducer selector style theme font icon layout grid modal tooltip menu toolbar tab panel sidebar
footer locale translation currency timezone calendar reminder notification email digest webhook
callback promise future coroutine generator iterator decorator fixture mock stub assertion coverage
benchmark profile flamegraph heap allocation leak pointer slice struct trait enum variant closure
macro crate wheel lockfile registry mirror artifact release tag commit diff patch conflict merge
rebase review comment ticket milestone runbook incident rollback canary flag experiment cohort
segment feature label model embedding vector tokenizer corpus epoch gradient checkpoint notebook
plot outlier histogram percentile baseline regression anomaly forecast""")
VERBS = pool("""
reads writes checks returns calls keeps drops loads sends parses builds runs updates creates removes
skips retries waits blocks fails passes logs stores fetches merges splits sorts filters validates
wraps exposes imports exports renames moves copies clears locks opens closes starts stops schedules
ignores rejects accepts counts groups joins hashes encodes decodes compresses flushes""")
ADJECTIVES = pool("""
new old empty missing wrong stale slow broken flaky unused duplicate nested partial pending local
remote shared default optional required internal public legacy async concurrent idle large small
first last next previous invalid expired cached""")
ENGLISH = """
The {n} {v} the {n} before the {n} is ready.
I looked at the {n}: it {v} every {a} {n}, but the {a} {n} never reaches the {n}.
Can you make the {n} handle a {a} {n}?
`{i}` {v} the {n} twice, so the {n} ends up {a}.
The problem is in {f}: the {n} is {a} whenever the {n} {v} first.
Please add a {n} for the {a} {n} and run the tests.
Now the {n} {v} only what the {n} asked for.
We should keep the {n} out of the {n}, because the {n} {v} it on every {n}.
That leaves {d} {a} {n} entries; none of them has a {n}.
Let me check how {f} uses the {n}.
After the change `{i}` {v} the {n} once and the {a} {n} is gone.
The {n} and the {n} disagree about the {n}: one {v} it, the other does not.
It took {d} ms before and about half of that now, since the {n} no longer {v} the {a} {n}.
Why does the {n} stay {a} when the {n} {v}?
I would rather move the {n} into its own {n} than pass the {n} through {d} calls.
Done: {f} has the {a} {n}, and `{i}` has a test with {d} cases.
If the {n} is {a}, the {n} {v} nothing and the {n} shows the {a} one.
There are two ways: a {a} {n} in the {n}, or a {n} that {v} when the {n} does.
The failing test expects a {a} {n}; the code gives it the {n} of the {a} {n}.
Leave the {n} as it is for now, we only need the {n}.""".strip().split("\n")

KOREAN_NOUNS = pool("""
파일 테스트 함수 오류 변경 요청 응답 서버 캐시 세션 설정 로그 배포 결제 주문 고객 화면 버튼 목록 데이터
색인 검색 알림 권한 계정 토큰 스키마 마이그레이션 트랜잭션 쿼리 브랜치 커밋 리뷰 빌드 모듈 컴포넌트 상태
이벤트 큐 작업 스케줄러 백업 복구 지표 대시보드 번역 시간대""")
KOREAN = """
{n}에서 {n}를 두 번 읽고 있어서 {n}가 느려졌습니다.
{n} 쪽을 먼저 확인하고 {n}를 고쳐 주세요.
{f}의 {n} 처리를 바꿨고, 테스트 {d}건이 모두 통과했습니다.
{n}가 비어 있으면 {n}를 건너뛰도록 했습니다.
왜 {n}가 {n}보다 늦게 갱신되나요?
{n}와 {n}를 나누는 편이 나중에 고치기 쉽습니다.
이번에는 {n}만 바꾸고 {n}는 그대로 두겠습니다.
{n} 문제는 {n} 설정에서 시작된 것으로 보입니다.""".strip().split("\n")
MIXED = """
{f}에서 {n}를 `{i}`로 옮겼어요. the {a} {n} is gone.
`{i}`가 {n}를 호출하기 전에 lock을 잡아야 합니다.
PR 올리기 전에 {n} 테스트 한 번만 더 돌려줘, {n}가 flaky해 보여.
{n} migration은 rollback 가능하게 작성했습니다: {d}개 table.
retry를 {d}번으로 제한하고 {n}는 timeout 처리했습니다.""".strip().split("\n")
JAPANESE_NOUNS = pool("""
ファイル テスト 関数 エラー 変更 リクエスト 応答 サーバー キャッシュ セッション 設定 ログ 配信 決済 注文 顧客
画面 ボタン 一覧 データ 索引 検索 通知 権限 アカウント 認証 スキーマ 移行 クエリ ブランチ レビュー 状態 イベント
キュー 処理 予約 バックアップ 復旧 指標 翻訳 時刻""")
JAPANESE = """
{n}が{n}を二回読み込んでいたので、{n}の側で一度にまとめました。
まず{n}を確認してから{n}を直してください。
{f}の{n}を変更し、テスト{d}件がすべて通りました。
{n}が空のときは{n}を飛ばすようにしました。
なぜ{n}は{n}より遅れて更新されるのですか？
{n}と{n}は分けておいた方が後で直しやすいと思います。
今回は{n}だけを変え、{n}はそのままにします。
{n}の問題は{n}の設定から来ているようです。""".strip().split("\n")
CHINESE_NOUNS = pool("""
文件 测试 函数 错误 改动 请求 响应 服务器 缓存 会话 配置 日志 部署 支付 订单 客户 页面 按钮 列表 数据 索引 搜索
通知 权限 账号 令牌 表结构 迁移 事务 查询 分支 提交 评审 构建 模块 组件 状态 事件 队列 任务 调度 备份 恢复 指标
报表 翻译 时区""")
CHINESE = """
{n}把{n}读了两遍，所以{n}变慢了。
请先检查{n}，再修改{n}。
{f}里的{n}已经改好，{d}个测试全部通过。
如果{n}为空，就跳过{n}。
为什么{n}比{n}更新得晚？
把{n}和{n}分开，以后更容易维护。
这次只改{n}，{n}保持不变。
{n}的问题看起来出在{n}的配置上。""".strip().split("\n")

LANGUAGES = ("en",) * 14 + ("ko", "ko", "ja", "ja", "zh", "zh", "mixed")

# folder, stack, extension of its files
PROJECTS = (
    ("/Users/dana/code/harbor-api", "python", "py"),
    ("/Users/dana/code/web shop", "typescript", "ts"),
    ("/Users/dana/code/tide_gauge", "go", "go"),
    ("/Users/dana/code/infra.tools", "python", "py"),
    ("/Users/dana/code/recipe-box", "typescript", "tsx"),
    ("/Users/dana/work/정산-배치", "python", "py"),
    ("/Users/dana/work/予約サイト", "typescript", "ts"),
    ("/Users/dana/work/数据平台", "python", "py"),
    ("/Users/dana/code/night-train", "go", "go"),
    ("/Users/dana/code/paper-trail", "python", "py"),
)
CODE = {
    "python": """\
def {i}({n}: str, limit: int = {d}) -> dict[str, int]:
    # the {a} {n} comes from the {n}, see {f}
    {n} = load_{n}({n}, limit={d})
    if not {n}:
        raise ValueError(f"no {n} for {{{n}!r}}")
    return {{"{n}": len({n}), "{n}": {d}}}
""",
    "typescript": """\
export async function {i}({n}: string, limit = {d}): Promise<number> {{
  // the {a} {n} comes from the {n}, see {f}
  const {n} = await fetch{i}({n}, {{ limit }})
  if (!{n}) throw new Error(`no {n} for ${{{n}}}`)
  return {n}.filter((x) => x.{n} > {d}).length
}}
""",
    "go": """\
func {i}(ctx context.Context, {n} string) (int, error) {{
	// the {a} {n} comes from the {n}, see {f}
	{n}, err := load{i}(ctx, {n}, {d})
	if err != nil {{
		return 0, fmt.Errorf("no {n} for %q: %w", {n}, err)
	}}
	return len({n}), nil
}}
""",
}

# A drawn word's place in its list is this power of an even draw: early words are common (some are
# in most sessions), late ones rare.
SKEW = 2.2

Draw = Callable[[], str]


def compile_template(text: str) -> tuple[str, str]:
    """Return the text with %s for its slots, and the slots' letters."""
    parts, slots = [], ""
    for literal, name, _, _ in string.Formatter().parse(text):
        parts.append(literal.replace("%", "%%"))
        if name is not None:
            parts.append("%s")
            slots += name
    return "".join(parts), slots


SENTENCES = {
    "en": [compile_template(text) for text in ENGLISH],
    "ko": [compile_template(text) for text in KOREAN],
    "ja": [compile_template(text) for text in JAPANESE],
    "zh": [compile_template(text) for text in CHINESE],
    "mixed": [compile_template(text) for text in (*MIXED, *KOREAN)],
}
LANGUAGE_NOUNS = {
    "en": NOUNS,
    "ko": KOREAN_NOUNS,
    "ja": JAPANESE_NOUNS,
    "zh": CHINESE_NOUNS,
    "mixed": KOREAN_NOUNS,
}
FUNCTIONS = {stack: compile_template(text) for stack, text in CODE.items()}


class Speaker:
    """Draws words, sentences and code for one session."""

    def __init__(self, draw: random.Random, language: str, stack: str, extension: str) -> None:
        self.draw, self.language, self.stack = draw, language, stack
        self.extension = extension
        self.slots: dict[str, Draw] = {
            "n": lambda: self.pick(LANGUAGE_NOUNS[language]),
            "v": lambda: self.pick(VERBS),
            "a": lambda: self.pick(ADJECTIVES),
            "i": self.identifier,
            "f": self.file,
            "d": lambda: str(int(2 + 900 * draw.random() ** 3)),
        }
        self.code_slots = self.slots | {"n": lambda: self.pick(NOUNS)}

    def pick(self, words: Sequence[str]) -> str:
        return words[int(len(words) * self.draw.random() ** SKEW)]

    def identifier(self) -> str:
        words = [self.pick(VERBS), self.pick(ADJECTIVES), self.pick(NOUNS)]
        if self.stack == "python":
            return "_".join(words)
        return words[0] + words[1].title() + words[2].title()

    def file(self) -> str:
        return f"src/{self.pick(NOUNS)}/{self.pick(NOUNS)}_{self.pick(NOUNS)}.{self.extension}"

    def sentence(self, language: str = "") -> str:
        text, slots = self.draw.choice(SENTENCES[language or self.language])
        names = self.code_slots if language else self.slots
        return text % tuple([names[slot]() for slot in slots])

    def prose(self, sentences: int) -> str:
        return " ".join([self.sentence() for _ in range(sentences)])

    def code(self, functions: int) -> str:
        text, slots = FUNCTIONS[self.stack]
        return "\n".join(
            [text % tuple([self.code_slots[slot]() for slot in slots]) for _ in range(functions)]
        )

    def length(self, least: int, middle: int, most: int) -> int:
        """Draw a length as real ones are spread: half below `middle`, a long tail above."""
        return min(most, max(least, round(self.draw.lognormvariate(0, 1.0) * middle)))


# --- what is planted ---


@dataclass(slots=True)
class Needle:
    kind: str
    query: str
    mark: str  # in the right text, and nowhere else in the history
    text: str
    place: str
    session_id: str = ""


@dataclass(slots=True)
class Key:
    kind: str
    value: str  # what must not come out again
    text: str
    place: str
    query: str  # finds the text around it
    session_id: str = ""


@dataclass(slots=True)
class Planted:
    """What HOME/planted.json says."""

    messages: int
    sessions: int
    files: int
    size_bytes: int
    needles: list[Needle] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)


# kind, place, sentence, question. {w} is the rare word of the needle, {W} the same in capitals,
# {C} with a capital, {d} a number of its own.
NEEDLES = (
    (
        "error code",
        "prompt",
        "The nightly run stopped with {W}_{d}, what does it want?",
        "{W}_{d}",
        "{W}_{d}",
    ),
    (
        "snake_case name",
        "response",
        "I renamed the helper to `collect_{w}_rows` so that both callers fit.",
        "collect_{w}_rows",
        "collect_{w}_rows",
    ),
    (
        "camelCase name",
        "code",
        "export const load{C}Batch = () => queue.drain()",
        "load{C}Batch",
        "load{C}Batch",
    ),
    (
        "part of a name",
        "code",
        "export const drop{C}Cache = () => cache.clear()",
        "{w} cache",
        "drop{C}Cache",
    ),
    (
        "file path",
        "edit",
        "src/adapters/{w}_bridge.py",
        "{w}_bridge.py",
        "{w}_bridge.py",
    ),
    (
        "command",
        "command",
        "docker compose restart {w}-relay --timeout {d}",
        "restart {w}-relay",
        "{w}-relay",
    ),
    (
        "tool output",
        "output",
        "error: linking with {w} failed: exit status {d}",
        "linking with {w} failed",
        "{w}",
    ),
    (
        "middle of long output",
        "long output",
        "warning: {w} is slower than its limit of {d} ms",
        "{w} slower than its limit",
        "{w}",
    ),
    (
        "written file",
        "write",
        "The {w} adapter must be started before the others.",
        "{w} adapter started before the others",
        "{w}",
    ),
    (
        "plain question",
        "response",
        "We settled on weekly backups for the {w} cluster, as daily ones filled the disk.",
        "how often did we decide to back up the {w} cluster?",
        "{w}",
    ),
    (
        "end of a long answer",
        "long response",
        "One last thing: pin {w} below version {d}.",
        "pin {w} below version",
        "{w}",
    ),
    (
        "queued prompt",
        "queued",
        "also rename the {w} folder while you are there",
        "rename the {w} folder",
        "{w}",
    ),
    (
        "subagent",
        "subagent",
        "Finding: {w} is called from {d} places and documented in none.",
        "{w} called from places documented in none",
        "{w}",
    ),
    (
        "compaction summary",
        "summary",
        "The user wants the {w} importer to stay read-only.",
        "{w} importer read-only",
        "{w}",
    ),
    ("Korean", "prompt", "{ko}에서는 요금을 매달 초에 정산하기로 했어요.", "{ko} 정산", "{ko}"),
    ("Korean", "response", "원인은 {ko}의 시계가 {d}초 늦은 것이었습니다.", "{ko}", "{ko}"),
    ("Japanese", "prompt", "{ja}の再計算は夜間に回すことにしました。", "{ja} 再計算", "{ja}"),
    ("Japanese", "response", "原因は{ja}の期限が{d}日で切れることでした。", "{ja}", "{ja}"),
    ("Chinese", "prompt", "我们决定让{zh}每{d}分钟重新同步一次。", "{zh} 重新同步", "{zh}"),
    ("Chinese", "response", "问题出在{zh}没有释放连接。", "{zh}", "{zh}"),
    (
        "glued to Korean",
        "prompt",
        "{C}를 쓰지 말고 표준 라이브러리로 가자.",
        "{C}",
        "{C}",
    ),
)
# Rare words: one syllable of each list. The three scripts' words are made the same way.
SYLLABLES = (
    pool("bram quel thor vex zin mor plu kry fen dal wob grin hux jas lev nar pim ros skel tuv"),
    pool("an eb il om ud ar en ib ol up ask emp ist oft ulk"),
    pool("quist vane dorf mire xel tarn wick zotte phor lund gast bry nock shaw tide"),
)
RARE_PARTS = {
    "ko": (
        pool("해무 달빛 산호 안개 은하 노을 서리 자작"),
        pool("등대 나루 고개 여울 마루 포구 들녘 솔숲"),
    ),
    "ja": (
        pool("黒曜 月影 珊瑚 朝霧 銀河 夕凪 霜柱 白樺"),
        pool("灯台 渡場 峠道 早瀬 棚田 入江 野原 松林"),
    ),
    "zh": (
        pool("墨石 月影 珊瑚 晨雾 银河 晚霞 霜花 白桦"),
        pool("灯塔 渡口 山岭 浅滩 梯田 港湾 原野 松林"),
    ),
}

# kind, parts of the key (a number stands for that many random characters), sentence, place
KEYS: tuple[tuple[str, tuple[str | int, ...], str, str], ...] = (
    ("OpenAI", ("sk", "-proj-", 48), "export OPENAI_API_KEY={k}", "command"),
    ("Anthropic", ("sk-", "ant-api03-", 93, "AA"), "my key is {k} for now", "prompt"),
    ("GitHub", ("gh", "p_", 36), "git remote add bot https://x:{k}@github.com/a/b", "command"),
    ("GitHub, fine-grained", ("github", "_pat_", 22, "_", 59), "GITHUB_TOKEN={k}", "output"),
    ("AWS", ("AK", "IA", 16), "aws_access_key_id = {k}", "output"),
    ("Slack", ("xo", "xb-", "217483920117-", 24), "SLACK_BOT_TOKEN={k}", "output"),
    ("Stripe", ("sk", "_live_", 24), "const stripe = new Stripe('{k}')", "response"),
    ("Google", ("AI", "za", 35), "the maps key {k} works again", "prompt"),
    ("npm", ("np", "m_", 36), "//registry/:_authToken={k}", "write"),
    ("password in a URL", (20,), "DATABASE_URL=postgres://harbor:{k}@db:5432/harbor", "output"),
    (
        "bearer token",
        ("eyJ", "hbGciOiJIUzI1NiJ9.", "eyJ", 60, ".", 43),
        "curl -H 'Authorization: Bearer {k}' localhost",
        "command",
    ),
    ("password in words", (14,), "the staging password is {k}, please try it", "prompt"),
)
LETTERS_AND_DIGITS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"


class Rare:
    """Gives out words that come once each."""

    def __init__(self, draw: random.Random) -> None:
        first, second, third = SYLLABLES
        self.words = [a + b + c for a in first for b in second for c in third]
        draw.shuffle(self.words)
        self.scripts = {}
        for language, (heads, tails) in RARE_PARTS.items():
            self.scripts[language] = [head + tail for head in heads for tail in tails]
            draw.shuffle(self.scripts[language])
        self.number = 4000

    def slots(self, text: str) -> dict[str, str]:
        """Return fresh values for what the text names."""
        word = self.words.pop()
        self.number += 7
        values = {"w": word, "W": word.upper(), "C": word.capitalize(), "d": str(self.number)}
        for language, words in self.scripts.items():
            if f"{{{language}}}" in text:
                values[language] = words.pop()
        return values


def make_needles(rounds: int, rare: Rare) -> list[Needle]:
    needles = []
    for _ in range(rounds):
        for kind, place, text, query, mark in NEEDLES:
            values = rare.slots(text)
            needles.append(
                Needle(
                    kind,
                    query.format(**values),
                    mark.format(**values),
                    text.format(**values),
                    place,
                )
            )
    return needles


def make_keys(rounds: int, draw: random.Random, rare: Rare) -> list[Key]:
    keys = []
    for _ in range(rounds):
        for kind, parts, text, place in KEYS:
            value = "".join(
                part if isinstance(part, str) else "".join(draw.choices(LETTERS_AND_DIGITS, k=part))
                for part in parts
            )
            if kind == "AWS":
                value = value.upper()
            near = rare.words.pop()
            keys.append(Key(kind, value, f"{text.format(k=value)} # {near}", place, near))
    return keys


# --- one session ---


class Session:
    """Writes one session's files, message by message, until its number of messages is reached."""

    def __init__(self, number: int, start: datetime, length: int, seed: int, home: Path) -> None:
        self.draw = draw = random.Random(f"{seed}/{number}")
        self.cwd, stack, extension = draw.choice(PROJECTS)
        self.say = Speaker(draw, draw.choice(LANGUAGES), stack, extension)
        self.id = self.uuid()
        self.branch = draw.choice(("main", "main", "fix-login", "wip", ""))
        encoded = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.cwd)
        self.folder = home / ".claude" / "projects" / encoded
        self.now, self.left = start, length
        self.parent: str | None = None
        self.prompt_id = ""
        self.lines: list[Json] = []
        self.side_files: dict[str, list[Json]] = {}

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.draw.getrandbits(128), version=4))

    def token(self, prefix: str) -> str:
        return prefix + "".join(self.draw.choices(LETTERS_AND_DIGITS, k=24 - len("01")))

    def tick(self, most_seconds: int) -> str:
        self.now += timedelta(milliseconds=self.draw.randint(300, 1000 * most_seconds))
        return self.now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.now.microsecond // 1000:03}Z"

    # lines

    def line(self, kind: str, seconds: int, agent: str = "", **fields: Any) -> Json:
        """Add a line with the common fields to the session or, if named, to a subagent's file."""
        line: Json = {
            "parentUuid": self.parent,
            "isSidechain": bool(agent),
            "userType": "external",
            "cwd": self.cwd,
            "sessionId": self.id,
            "version": "2.1.120",
            "gitBranch": self.branch,
        }
        if agent:
            line["agentId"] = agent
        line |= {"type": kind, **fields, "uuid": self.uuid(), "timestamp": self.tick(seconds)}
        self.parent = line["uuid"]
        (self.side_files[agent] if agent else self.lines).append(line)
        return line

    def message(self, kind: str, seconds: int, agent: str = "", **fields: Any) -> Json:
        self.left -= 1
        return self.line(kind, seconds, agent, **fields)

    def prompt(self, text: str, agent: str = "") -> None:
        self.prompt_id = self.uuid()
        said = {"role": "user", "content": text}
        self.message("user", 400, agent, promptId=self.prompt_id, message=said)

    def assistant(self, block: Json, message_id: str, agent: str = "") -> None:
        spoken = {
            "model": "claude-opus-4-5-20251101",
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": self.draw.randint(3, 12),
                "cache_creation_input_tokens": self.draw.randint(100, 4000),
                "cache_read_input_tokens": self.draw.randint(12_000, 150_000),
                "output_tokens": self.draw.randint(5, 900),
                "service_tier": "standard",
            },
        }
        request = "req_011" + message_id[-21:]
        self.message("assistant", 25, agent, requestId=request, message=spoken)

    def text(self, text: str, message_id: str = "", agent: str = "") -> None:
        block = {"type": "text", "text": text}
        self.assistant(block, message_id or self.token("msg_01"), agent)

    def tool(
        self,
        name: str,
        given: Json,
        content: str,
        copy: Json,
        agent: str = "",
        failed: bool = False,
    ) -> None:
        """Add the assistant's call and the line that holds its result, with the structured copy."""
        tool_id = self.token("toolu_01")
        block = {"type": "tool_use", "id": tool_id, "name": name, "input": given}
        self.assistant(block, self.token("msg_01"), agent)
        result: Json = {"tool_use_id": tool_id, "type": "tool_result", "content": content}
        if failed:
            result["is_error"] = True
        told = {"role": "user", "content": [result]}
        self.message("user", 12, agent, message=told, toolUseResult=copy)

    # tools

    def output(self, lines: int) -> str:
        """Return what a command printed: tests, logs, files, in no language but English."""
        say, draw = self.say, self.draw
        made = []
        for _ in range(lines):
            kind = draw.random()
            if kind < 0.35:
                made.append(f"tests/test_{say.pick(NOUNS)}.py::{say.identifier()} PASSED")
            elif kind < 0.65:
                made.append(
                    f"{self.now:%H:%M:%S} INFO {say.pick(NOUNS)}: {say.pick(NOUNS)}="
                    f"{draw.randint(1, 99_999)} {say.pick(VERBS)} {say.file()}"
                )
            elif kind < 0.85:
                made.append(f"{say.file()}:{draw.randint(1, 900)}: {say.sentence('en')}")
            else:
                made.append(f"{draw.getrandbits(28):07x} {say.sentence('en')}")
        return "\n".join(made)

    def bash(self, command: str = "", output: str = "", agent: str = "") -> None:
        say = self.say
        command = command or self.draw.choice(
            (
                f"pytest -q tests/test_{say.pick(NOUNS)}.py",
                f"git log --oneline -n {self.draw.randint(3, 40)} -- {say.file()}",
                f"rg -n {say.identifier()} src",
                f"ls -la src/{say.pick(NOUNS)}",
                f"docker compose logs {say.pick(NOUNS)} | tail -n 50",
            )
        )
        output = output or self.output(say.length(1, 9, 260))
        copy = {"stdout": output, "stderr": "", "interrupted": False, "isImage": False}
        given = {"command": command, "description": say.sentence("en")}
        self.tool("Bash", given, output, copy, agent, failed=self.draw.random() < 0.06)

    def read(self, agent: str = "") -> None:
        path = f"{self.cwd}/{self.say.file()}"
        code = self.say.code(self.say.length(1, 5, 60))
        rows = code.split("\n")
        shown = "\n".join([f"{number:6}→{row}" for number, row in enumerate(rows, 1)])
        kept = {
            "filePath": path,
            "content": code,
            "numLines": len(rows),
            "startLine": 1,
            "totalLines": len(rows),
        }
        self.tool("Read", {"file_path": path}, shown, {"type": "text", "file": kept}, agent)

    def edit(self, path: str = "") -> None:
        path = f"{self.cwd}/{path or self.say.file()}"
        old, new = self.say.code(1), self.say.code(self.draw.randint(1, 3))
        rows = [f"-{row}" for row in old.split("\n")] + [f"+{row}" for row in new.split("\n")]
        hunk = {"oldStart": 12, "oldLines": 7, "newStart": 12, "newLines": 7, "lines": rows}
        copy = {
            "filePath": path,
            "oldString": old,
            "newString": new,
            "originalFile": self.say.code(self.say.length(1, 4, 40)),
            "structuredPatch": [hunk],
            "userModified": False,
            "replaceAll": False,
        }
        given = {"file_path": path, "old_string": old, "new_string": new}
        self.tool("Edit", given, f"The file {path} has been updated.", copy)

    def write(self, content: str = "") -> None:
        path = f"{self.cwd}/{self.say.file()}"
        content = content or self.say.code(self.say.length(1, 4, 30))
        copy = {"type": "create", "filePath": path, "content": content, "structuredPatch": []}
        given = {"file_path": path, "content": content}
        self.tool("Write", given, f"File created successfully at: {path}", copy)

    def grep(self, agent: str = "") -> None:
        names = [self.say.file() for _ in range(self.say.length(1, 6, 80))]
        shown = f"Found {len(names)} files\n" + "\n".join(names)
        copy = {"mode": "files_with_matches", "filenames": names, "numFiles": len(names)}
        given = {"pattern": self.say.identifier(), "output_mode": "files_with_matches"}
        self.tool("Grep", given, shown, copy, agent)

    def some_tool(self) -> None:
        kind = self.draw.random()
        if kind < 0.42:
            self.bash()
        elif kind < 0.68:
            self.read()
        elif kind < 0.84:
            self.edit()
        elif kind < 0.92:
            self.grep()
        else:
            self.write()

    # turns

    def answer(self) -> str:
        say = self.say
        text = say.prose(say.length(1, 3, 30))
        if self.draw.random() < 0.25:
            text += f"\n\n```{say.stack}\n{say.code(self.draw.randint(1, 3))}```"
        if self.draw.random() < 0.2:
            text += "\n\n" + "\n".join(
                f"- {say.sentence()}" for _ in range(self.draw.randint(2, 5))
            )
        return text

    def turn(self) -> None:
        """Add a prompt, what the assistant does about it, and its answer."""
        draw, say = self.draw, self.say
        kind = draw.random()
        if kind < 0.12:
            self.prompt(draw.choice(("yes", "go on", "1", "네", "ok, commit it", "続けて", "好的")))
        elif kind < 0.15:
            pasted = f"{say.sentence()}\n\n{self.output(draw.randint(10, 60))}"
            self.prompt(pasted)
        else:
            self.prompt(say.prose(say.length(1, 2, 12)))
        for step in range(draw.choice((0, 1, 1, 2, 2, 3, 4))):
            if self.left < 4:
                break
            if draw.random() < 0.3:
                signature = "".join(draw.choices(LETTERS_AND_DIGITS, k=draw.randint(200, 700)))
                block = {"type": "thinking", "thinking": "", "signature": signature}
                self.assistant(block, self.token("msg_01"))
            if step == 0 or draw.random() < 0.3:
                self.text(say.sentence())
            self.some_tool()
        if self.left > 8 and draw.random() < 0.03:
            self.subagent(say.prose(4))
        if self.left > 0:
            self.text(self.answer())
        if draw.random() < 0.3:
            self.line("system", 1, subtype="turn_duration", durationMs=draw.randint(900, 400_000))

    def subagent(self, finding: str) -> None:
        """Add a call of a subagent, whose own lines go to a file of their own."""
        agent = f"a{self.draw.getrandbits(64):016x}"
        task = self.say.prose(3)
        here, self.parent = self.parent, None
        self.side_files[agent] = []
        self.prompt(task, agent)
        for _ in range(self.draw.randint(1, 2)):
            if self.left > 4:
                self.draw.choice((self.bash, self.read, self.grep))(agent=agent)
        report = self.say.prose(2)
        self.text(finding, agent=agent)
        self.text(report, agent=agent)
        self.parent = here
        given = {"description": self.say.sentence("en"), "prompt": task, "subagent_type": "Explore"}
        copy = {"status": "completed", "prompt": task, "agentId": agent}
        self.tool("Task", given, report, copy)

    def planted_turn(self, plant: Needle | Key) -> None:
        """Add a short turn that holds the planted text in its place."""
        text, place, say = plant.text, plant.place, self.say
        plant.session_id = self.id
        if place == "summary":
            boundary = {"trigger": "auto", "preTokens": self.draw.randint(140_000, 170_000)}
            last, self.parent = self.parent, None
            self.line(
                "system",
                2,
                subtype="compact_boundary",
                content="Conversation compacted",
                logicalParentUuid=last,
                compactMetadata=boundary,
            )
            opening = (
                "This session is being continued from a previous conversation that ran out of "
                f"context. The conversation is summarized below:\n{say.prose(10)}\n{text}"
            )
            self.message(
                "user",
                1,
                isCompactSummary=True,
                isVisibleInTranscriptOnly=True,
                message={"role": "user", "content": opening},
            )
        self.prompt(f"{say.sentence()} {text}" if place == "prompt" else say.sentence())
        if place == "queued":
            queued = {"type": "queued_command", "prompt": text, "commandMode": "prompt"}
            self.line("attachment", 20, attachment=queued)
        elif place == "command":
            self.bash(command=text)
        elif place == "output":
            self.bash(output=f"{self.output(4)}\n{text}\n{self.output(3)}")
        elif place == "long output":
            self.bash(output=f"{self.output(90)}\n{text}\n{self.output(90)}")
        elif place == "edit":
            self.edit(path=text)
        elif place == "write":
            self.write(content=f"# {say.sentence('en')}\n\n{text}\n\n{say.sentence('en')}\n")
        elif place == "subagent":
            self.subagent(f"{say.prose(2)} {text}")
        else:
            self.some_tool()
        if place == "response":
            self.text(f"{say.prose(2)} {text} {say.sentence()}")
        elif place == "code":
            self.text(f"{say.sentence()}\n\n```ts\n{text}\n```\n\n{say.sentence()}")
        elif place == "long response":
            self.text(f"{say.prose(120)} {text}")
        else:
            self.text(self.answer())

    def tell(self, plants: list[Needle | Key]) -> None:
        """Make the whole session; every planted text gets a turn."""
        self.lines.append(
            {
                "type": "file-history-snapshot",
                "messageId": self.uuid(),
                "snapshot": {"messageId": self.uuid(), "trackedFileBackups": {}},
                "isSnapshotUpdate": False,
            }
        )
        waiting = plants[::-1]
        while self.left > 0:
            due = self.left <= LONGEST_PLANTED_TURN * len(waiting) + LONGEST_TURN
            if waiting and (due or self.draw.random() < 0.1):
                self.planted_turn(waiting.pop())
            elif self.left == 1:
                self.prompt(self.say.sentence())
            else:
                self.turn()
            if self.draw.random() < 0.1:
                hook = {"type": "hook_success", "hookName": "PostToolUse:Edit", "content": "ok"}
                self.line("attachment", 1, attachment=hook)
        assert not waiting, "a session was too short for what is planted in it"
        title = " ".join(self.say.sentence().split()[:7])
        self.lines.append({"type": "ai-title", "sessionId": self.id, "aiTitle": title})

    def save(self) -> tuple[int, int]:
        """Write the session's files; returns how many, and their bytes."""
        files = {self.folder / f"{self.id}.jsonl": self.lines}
        for agent, lines in self.side_files.items():
            files[self.folder / self.id / "subagents" / f"agent-{agent}.jsonl"] = lines
        size = 0
        for path, lines in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            body = "".join(f"{render_line(line)}\n" for line in lines).encode()
            path.write_bytes(body)
            moment = self.now.timestamp()
            os.utime(path, (moment, moment))
            size += len(body)
        return len(files), size


def render_line(line: Json) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


# --- the whole history ---


def plan_lengths(messages: int, draw: random.Random) -> list[int]:
    """Return how many messages each session has; together they are `messages`."""
    lengths: list[int] = []
    left = messages
    while left > 0:
        length = min(left, draw.choice(SESSION_LENGTHS))
        lengths.append(length)
        left -= length
    return lengths


def spread(
    plants: list[Needle | Key], lengths: list[int], draw: random.Random
) -> Iterator[tuple[int, Needle | Key]]:
    """Give every planted text a session that has room for it, evenly over the history."""
    places = [
        number for number, length in enumerate(lengths) for _ in range(length // MESSAGES_PER_PLANT)
    ]
    if len(places) < len(plants):
        raise SystemExit(f"{len(plants)} planted texts need more messages than {sum(lengths)}.")
    step = len(places) / len(plants)
    draw.shuffle(plants)
    for number, plant in enumerate(plants):
        yield places[int(number * step)], plant


def make_history(messages: int, home: Path, seed: int = SEED) -> Planted:
    """Write a history of exactly so many messages below `home`, and planted.json beside it."""
    draw = random.Random(seed)
    lengths = plan_lengths(messages, draw)
    rare = Rare(draw)
    # Ten of each kind where there is room for them: enough questions for a 95th percentile.
    rounds = 10 if messages >= 8000 else 1
    needles, keys = make_needles(rounds, rare), make_keys(max(1, rounds // 3), draw, rare)
    plants: dict[int, list[Needle | Key]] = {}
    for number, plant in spread([*needles, *keys], lengths, draw):
        plants.setdefault(number, []).append(plant)
    planted = Planted(messages, len(lengths), 0, 0, needles, keys)
    first = LAST_DAY - timedelta(days=DAYS)
    for number, length in enumerate(lengths):
        start = first + timedelta(days=DAYS) * (number / len(lengths))
        session = Session(number, start, length, seed, home)
        session.tell(plants.get(number, []))
        files, size = session.save()
        planted.files += files
        planted.size_bytes += size
    (home / PLANTED_FILE).write_text(
        json.dumps(asdict(planted), ensure_ascii=False, indent=1), "utf-8"
    )
    return planted


def read_planted(home: Path) -> Planted:
    found = json.loads((home / PLANTED_FILE).read_text("utf-8"))
    found["needles"] = [Needle(**needle) for needle in found["needles"]]
    found["keys"] = [Key(**key) for key in found["keys"]]
    return Planted(**found)


def make_common_questions(count: int, seed: int = SEED) -> list[str]:
    """Return questions made only of words that are all over every history."""
    draw = random.Random(f"common/{seed}")
    head = NOUNS[: len(NOUNS) // 5]
    questions: set[str] = set()
    while len(questions) < count:
        first, second, third = draw.sample(head, 3)
        questions.add(f"why does the {first} of the {second} need a {third}")
    return sorted(questions)


def append_prompt(transcript: Path, text: str) -> None:
    """Add what a person just said to a transcript, as Claude Code does while it runs."""
    lines = [json.loads(line) for line in transcript.read_bytes().splitlines()]
    last = [line for line in lines if "uuid" in line][-1]
    line = {name: last[name] for name in ("cwd", "sessionId", "version", "gitBranch", "userType")}
    moment = datetime.fromisoformat(last["timestamp"]) + timedelta(seconds=40)
    line |= {
        "parentUuid": last["uuid"],
        "isSidechain": False,
        "type": "user",
        "message": {"role": "user", "content": text},
        "uuid": str(uuid.uuid4()),
        "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    }
    with open(transcript, "ab") as file:
        file.write(render_line(line).encode() + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("messages", type=int)
    parser.add_argument("home", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(argv)
    args.home.mkdir(parents=True, exist_ok=True)
    planted = make_history(args.messages, args.home, args.seed)
    print(
        f"{planted.messages:,} messages in {planted.sessions:,} sessions, {planted.files:,} files, "
        f"{planted.size_bytes / 1e6:.1f} MB; {len(planted.needles)} needles, {len(planted.keys)} keys"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
