"""The privacy filter: what is hidden, what stays, and that no text makes it slow."""

from __future__ import annotations

import base64
import json
import random
import string

import pytest
from conftest import grows_evenly
from hypothesis import given, settings
from hypothesis import strategies as st

from code_memory import (
    RULES,
    ConfigError,
    PrivacyFilter,
    Rule,
    redact,
)

# Made-up secrets, put together here so that no scanner takes this file for a leak.
TOKEN = "q7x2m9" * 5
MIXED = "aB3xK9mQ2z" * 4
PASSWORD = "Harbor" + "_570qw"
UUID = "2b4e6a8c-1d3f-4a5b-8c7d-9e0f1a2b3c4d"
BODY = "Zk3vQ8mW1xR6tY9p" * 4


def rule_id(rule: Rule) -> str:
    return f"{rule.kind} {rule.literals[0]}"


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_every_example_is_hidden(rule: Rule) -> None:
    hidden = redact(f"see {rule.example}\nend")
    assert rule.example not in hidden
    assert "[REDACTED:" in hidden
    assert any(
        literal in rule.example.lower() or literal in rule.example for literal in rule.literals
    )


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.exact], ids=rule_id)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "$ echo {}\n{}",
        '"{}"',
        "x={};",
        "我的 {} 。",
        r"{{\"a\":\"b\n{}\n\"}}",
        "https://h/?k={}&b=1",
    ],
)
def test_a_token_is_hidden_wherever_it_stands(rule: Rule, around: str) -> None:
    assert rule.example not in redact(around.format(*[rule.example] * 2))


def test_two_hundred_services() -> None:
    assert len({rule.kind for rule in RULES if rule.exact}) >= 200


ASSIGNED = [
    "ACME_API_KEY={}",
    'export ACME_TOKEN="{}"',
    "docker run -e ACME_SECRET={} app",
    '  "acme_token": "{}",',
    r'{{"text":"set ACME_API_KEY=\"{}\" in .env"}}',
    r"{{\\\"acmeKey\\\": \\\"{}\\\"}}",
    "acme_secret: {}",
    "acme_secret: '{}'",
    'const acmeToken = "{}";',
    'const acmeToken: string = "{}";',
    "acmeKey := `{}`",
    'String acmeSecret = "{}";',
    'os.environ["ACME_API_KEY"] = "{}"',
    'os.getenv("ACME_API_KEY", "{}")',
    'process.env.ACME_TOKEN || "{}"',
    'variable "acme_token" {{ default = "{}" }}',
    'variable "acme_token" {{\n  type = string\n  default = "{}"\n}}',
    "- name: ACME_TOKEN\n  value: {}",
    '<add key="AcmeApiKey" value="{}" />',
    "<acmeToken>{}</acmeToken>",
    '$env:ACME_TOKEN = "{}"',
    'setx ACME_TOKEN "{}"',
    "ENV ACME_TOKEN {}",
    "aws configure set acme_secret {}",
    'gh secret set ACME_TOKEN --body "{}"',
    "tool --token {} run",
    "tool --api-key={}",
    "curl -H 'X-Api-Key: {}' https://x.example",
    '"headers":{{"x-api-key":"{}"}}',
    "https://api.example.com/v1?api_key={}&limit=10",
    "//registry.npmjs.org/:_authToken={}",
    "     12→API_TOKEN={}\n     13→LOG_LEVEL=info",
    "+ACME_SECRET_KEY={}",
    "&quot;acme_token&quot;:&quot;{}&quot;",
    "**ACME_KEY**: `{}`",
    "Authorization: Bearer {}",
    '"Authorization": "Bearer {}"',
    "Authorization: token {}",
    "auth header=Bearer {} status=200",
    "Cookie: connect.sid={}; theme=dark",
    "PHPSESSID={}",
    "here is my key: {} please use it",
    "use this token {} for the request",
    "the API key is `{}`",
    "내 키는 {} 이거야",
    "토큰: {}",
    "密钥是 {} ，帮我测试一下",
    "キーは {} です",
    "api key는 {} 입니다",
]


@pytest.mark.parametrize("value", [TOKEN, MIXED], ids=["lower", "mixed"])
@pytest.mark.parametrize("text", ASSIGNED)
def test_random_values_beside_a_name_are_hidden(text: str, value: str) -> None:
    assert value[:8] not in redact(text.format(value))


PASSWORDS = [
    "DB_PASSWORD={}",
    "password: {}",
    '"password": "{}"',
    "spring.datasource.password={}",
    'login(user="kim", passwd="{}")',
    "ansible_become_pass: {}",
    "Server=db;User Id=sa;Password={};Encrypt=true",
    "mysql -u root -p{} app",
    "sshpass -p '{}' ssh a@b",
    "htpasswd -b .htpasswd admin {}",
    "curl -u admin:{} https://ci.example",
    "docker login -u kim -p {} registry.example",
    "redis-cli -a {} ping",
    "echo 'root:{}' | chpasswd",
    "mongodump --username kim --password {} --db x",
    "CREATE USER kim IDENTIFIED BY '{}';",
    'requests.get(u, auth=("kim", "{}"))',
    "machine x login kim password {}",
    "<password>{}</password>",
    "postgres://app:{}@localhost:5432/app",
    "redis://:{}@redis:6379/0",
    "Set password to `{}` and retry",
    "my password for the server is {}",
    "PASSWORD is: {}",
    "use {} as the password",
    "wifi pass = {}",
    r'{{"output":"user: kim\npassword: {}\nport: 1"}}',
    "비밀번호는 {} 입니다",
    "비번: {}",
    "패스워드를 {}로 바꿔줘",
    "密码：{}",
    "数据库密码为{}，请登录",
    "把密码改成 {}",
    "パスワードは {} です",
    "パスワードを「{}」に変更して",
    'ConvertTo-SecureString "{}" -AsPlainText',
]


@pytest.mark.parametrize("value", [PASSWORD, "Orbit$" + "66xZ", "n7K!x" + "w2#Lq"])
@pytest.mark.parametrize("text", PASSWORDS)
def test_passwords_are_hidden(text: str, value: str) -> None:
    assert value not in redact(text.format(value))


BEGIN, END = "-----BEGIN " + "RSA PRIVATE KEY-----", "-----END " + "RSA PRIVATE KEY-----"
LINES = [BODY, BODY[::-1], BODY[:40]]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\n".join([BEGIN, *LINES, END]), id="whole"),
        pytest.param("\r\n".join([BEGIN, *LINES, END]), id="windows"),
        pytest.param('{"k":"' + "\\n".join([BEGIN, *LINES, END]) + '"}', id="escaped"),
        pytest.param(
            '"{\\"k\\":\\"' + "\\\\n".join([BEGIN, *LINES, END]) + '\\"}"', id="twice escaped"
        ),
        pytest.param(
            "\n".join(f"{n:6}→{line}" for n, line in enumerate([BEGIN, *LINES, END])), id="numbered"
        ),
        pytest.param("\n".join("+" + line for line in [BEGIN, *LINES, END]), id="diff"),
        pytest.param("\n".join([BEGIN, *LINES])[:-3], id="cut off at the end"),
        pytest.param("\n".join([*LINES, END]), id="cut off at the start"),
        pytest.param(
            "\n".join(
                [BEGIN, "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,00", "", *LINES, END]
            ),
            id="headers",
        ),
        pytest.param("\n".join(["    " + line for line in [BEGIN, *LINES, END]]), id="indented"),
    ],
)
def test_private_key_blocks(text: str) -> None:
    hidden = redact(f"cat id\n{text}\n$ ls")
    assert "[REDACTED:private-key]" in hidden
    assert not any(line[i : i + 10] in hidden for line in LINES for i in range(len(line) - 10))
    assert hidden.endswith("$ ls")


HARMLESS = [
    "uses: actions/checkout@0baeb3812e3291835e9c07a38c1413c89a203a77 # v4",
    "7574ac9 fix: handle empty token list",
    f"request_id={UUID}",
    f'"sessionId":"{UUID}"',
    f"credentialsId: '{UUID}'",
    f"<UserSecretsId>{UUID}</UserSecretsId>",
    '"bridgeSessionId":"cse_01NqYVUYTjEqb4jESH4hbbv7"',
    'entireSessionID: "2026-11-30-a1b2c3d4_e5f6_7890"',
    f'clientId = "{UUID}"',
    '"tool_use_id":"toolu_01ODZXCvroiYpQi0dCMXMVEI"',
    '"id":"msg_01XFDUDYJgAACzvnptvVoYEL"',
    '"id":"chatcmpl-mru3wkJp3ghMpg4mpHNhA3IgOWJXR"',
    "cus_d0cPLiHgHhkb05 price_1vhTg4ANKDdlfDjsfxyMJ6xZ",
    "pk_test_omKxNBaivFKDTU8G2fcECkTN",
    "integrity sha512-WrdDf50pUQRcWw95PngqbzmXE+1/R27CPYtJSuoyg2IOm01m9VclUFKyYu17uQXbesDahoIWeEv/xQfkf2kZYQ==",
    "    --hash=sha256:db6301e6c108224cf4df9b42e000ce9b7598264633808a51c88f72da6b0c2ee6",
    'cache-key: "linux-4dfaeebcd6e65970e89b411f5e4aaa423ffb6ac3"',
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq7x2m9q7x2m9q7x2m9q7x2m9q7x2m9q7x2m9q7 kim@host",
    'public_key = "8Httn7n4SZeHFx8Tk4XkAUlWQkLTkUXT0ASBpzRPAxk"',
    "gpg: using RSA key 4AEE18F83AFDEB23",
    "API_KEY=your_api_key_here",
    "OPENAI_API_KEY=sk-...",
    "ANTHROPIC_API_KEY=sk-ant-" + "x" * 24,
    "password: ********",
    "export TOKEN=$(gh auth token)",
    "SECRET_KEY=changeme-in-production-please",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "apiKey: process.env.API_KEY",
    "postgres://user:password@localhost:5432/db",
    "postgres://postgres:postgres@localhost/db",
    "mongodb://<username>:<password>@cluster.example.net",
    "redis://:${REDIS_PASSWORD}@redis:6379/0",
    "${{ secrets.NPM_TOKEN }}",
    '"token": "[REDACTED]"',
    "token = tokenizer.encode(text)",
    "token = get_token()",
    "password = request.form['password']",
    "const { accessToken, refreshToken } = await getTokens(code)",
    "max_tokens=4096, temperature=0.2",
    "password: string;",
    "password: Optional[str] = None",
    "password: String!",
    'raise ValueError("Invalid API key provided")',
    '<input type="password" name="password" autocomplete="current-password">',
    '"password": "Password must be at least 8 characters"',
    "The password is hashed with SHA-256 and PBKDF2.",
    "the token is expired since 2024-05-04T10:11:12Z",
    "password authentication uses scram-sha-256",
    "JWT_ALGORITHM=HS256",
    'LLM_SECRET_NAME = "NEXUS-GPT4-API-KEY"',
    'access_token_url = "https://github.com/login/oauth/access_token"',
    "PASSWORD_FILE=/run/secrets/db_password",
    "--- PASS: TestPush/http_408_deadline (0.00s)",
    "def test_get_rfc2231_params_with_8bit(self):",
    "re.compile(r'ghp_[A-Za-z0-9]{36}')",
    BEGIN + "\\n...\\n" + END,
    f"if pem.startswith('{BEGIN}'):",
    "비밀번호는 8자 이상이어야 합니다",
    "password: 여덟글자가넘는한국어문장",
    "비밀번호 해싱은 bcrypt를 사용한다",
    "密码必须包含至少一个数字",
    "パスワードをハッシュ化して保存する",
    "/nix/store/gi2v7863riyr6kpmpakwxkclk459ym2p-python3-3.12.4",
    "src: url(data:font/woff2;base64," + BODY * 4 + ")",
    '!function(e,t){"object"==typeof exports?module.exports=t():e.key=t()}(this,function(){var k1=a[5]})',
    "ssh -p 2222 kim@host; docker run -p 8080:80 -u 1000:1000 app; mkdir -p src/a1b2/c",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a <private>b</private> c", "a [PRIVATE] c", id="angle"),
        pytest.param("a [private]b[/private] c", "a [PRIVATE] c", id="square"),
        pytest.param("a <!-- private -->b<!-- /private --> c", "a [PRIVATE] c", id="comment"),
        pytest.param("a <!--private-->b<!--/private--> c", "a [PRIVATE] c", id="tight comment"),
        pytest.param("<PRIVATE>b</Private>", "[PRIVATE]", id="any case"),
        pytest.param("<private>b\n\nc</private>", "[PRIVATE]", id="over lines"),
        pytest.param(
            "<private>a</private> b <private>c</private>", "[PRIVATE] b [PRIVATE]", id="two"
        ),
        pytest.param("a <private>b\nc", "a [PRIVATE]", id="unclosed hides the rest"),
        pytest.param("a <private>b<private>c</private>d</private>e", "a [PRIVATE]e", id="nested"),
        pytest.param("<private>a<private>b</private>c", "[PRIVATE]", id="nested, one end missing"),
        pytest.param("<private>a[/private]b", "[PRIVATE]", id="closed by another form"),
        pytest.param("<private>a[private]b</private>c", "[PRIVATE]c", id="other form inside"),
        pytest.param("a</private>b", "a</private>b", id="only an end"),
        pytest.param("<private></private>", "[PRIVATE]", id="empty"),
        pytest.param("use `<private>` tags", "use `<private>` tags", id="inline code"),
        pytest.param("``<private>`` and `x`", "``<private>`` and `x`", id="two ticks"),
        pytest.param("a ` <private>b</private>", "a ` [PRIVATE]", id="a lone tick is no code"),
        pytest.param("```\n<private>a\n```\nb", "```\n<private>a\n```\nb", id="fence"),
        pytest.param(
            "~~~html\n<private>a\n~~~\nb", "~~~html\n<private>a\n~~~\nb", id="tilde fence"
        ),
        pytest.param(
            "````\n```\n<private>\n````\n<private>c",
            "````\n```\n<private>\n````\n[PRIVATE]",
            id="longer fence",
        ),
        pytest.param(
            "```\n<private>a</private>", "```\n[PRIVATE]", id="an unclosed fence protects nothing"
        ),
        pytest.param("<private>\n```\ncode\n```\n</private>b", "[PRIVATE]b", id="fence inside"),
        pytest.param(
            "private class A { <private-x> }", "private class A { <private-x> }", id="only the word"
        ),
    ],
)
def test_private_tags(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_settings_add_tags_and_patterns() -> None:
    own = PrivacyFilter(patterns=[r"ACME-\d{4}", r"badge (\w+)"], tags=["nda", "비밀"])
    text, counts = own.count(
        "<nda>x</nda> [비밀]y[/비밀] ACME-1234 badge blue <private>z</private>"
    )
    assert text == "[PRIVATE] [PRIVATE] [REDACTED:custom] badge [REDACTED:custom] [PRIVATE]"
    assert counts == {"private": 3, "custom": 2}
    assert own.redact(text) == text


@pytest.mark.parametrize("pattern", ["(", "a**", "x*"])
def test_a_bad_pattern_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError) as error:
        PrivacyFilter(patterns=[pattern])
    assert repr(pattern) in str(error.value)


def test_counts_by_kind() -> None:
    text, counts = PrivacyFilter().count(
        f"password: {PASSWORD}\nA_TOKEN={TOKEN} <private>x</private>"
    )
    assert counts == {"password": 1, "assignment": 1, "private": 1}
    assert text == "password: [REDACTED:password]\nA_TOKEN=[REDACTED:assignment] [PRIVATE]"


PIECES = st.sampled_from(
    [rule.example for rule in RULES]
    + [
        "[REDACTED:password]",
        "[PRIVATE]",
        "<private>",
        "</private>",
        "[private]",
        "`",
        "```\n",
        "\n",
    ]
    + [
        "password",
        "token",
        " is ",
        "=",
        ": ",
        '"',
        "\\",
        "\\n",
        "://",
        "@",
        "]",
        "[",
        ",",
        " ",
        "키는 ",
    ]
    + [TOKEN, PASSWORD, UUID, BEGIN, END, BODY]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join))
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


FEW = st.sampled_from(
    [
        "<private>",
        "</private>",
        "[private]",
        "[/private]",
        "[PRIVATE]",
        "`",
        "``",
        "```",
        "\n",
        "x",
        " ",
        "~~~",
        "password: ",
        PASSWORD,
        "[REDACTED:password]",
        "=",
        '"',
        "token",
    ]
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(FEW, max_size=14).map("".join))
def test_redacting_twice_changes_nothing_among_tags(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_lone_surrogates_are_taken() -> None:
    assert redact(f"\ud800 A_TOKEN={TOKEN}") == "\ud800 A_TOKEN=[REDACTED:assignment]"


HOSTILE = [
    "a",
    "A",
    "0",
    "'",
    '"',
    "`",
    "\\",
    '\\"',
    "\\n",
    "-",
    "=",
    ":",
    "@",
    " ",
    "\n",
    "\t",
    "<",
    "[",
    "/",
    "|",
    "é",
    "密",
    "ab12",
    "aB3+/",
    "password=",
    "password= ",
    "password is ",
    'password="',
    "token: ",
    "key=",
    "key key ",
    "secret,",
    "token=a1b2c3d4 ",
    "api_key = ${X} ",
    "://",
    "://a:",
    "https://",
    "https://a.",
    "a:b@",
    "Bearer ",
    "basic YTph ",
    "<private>",
    "</private>",
    "<private></private>",
    "[private]",
    "<!-- private -->",
    "```\n",
    "```x\n",
    "~~~\n",
    "` `` ",
    "`",
    "-----BEGIN ",
    BEGIN,
    BEGIN + "\n",
    END,
    BODY + "\n",
    "kind: Secret\n",
    "data:\n  a: b1c2d3e4f5\n",
    "mnemonic ",
    "abandon ",
    "sk-",
    "ghp_",
    "eyJ",
    "eyJ.",
    "xoxb-",
    "AKIA",
    "live_",
    "s.",
    "M.",
    "1234567890:A",
    "Q~",
    "-us1",
    "_mmk",
    "mysql -p",
    "curl -u ",
    " -p ",
    "echo | sudo -S ",
    "cookie: a=b; ",
    "sig=",
    "비밀번호",
    "비밀번호는 ",
    "키",
    "パスワード",
    "is my password ",
    "the password ",
    "[REDACTED:password]",
    "[PRIVATE]",
    "login: a/",
    "{",
    'variable "token" {',
    "value=",
]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_no_text_makes_it_slow(piece: str) -> None:
    text = piece * (120_000 // len(piece))
    assert grows_evenly(lambda size: redact(text[:size]), 30_000, len(text))


def test_random_bytes_are_no_trouble() -> None:
    draw = random.Random(7)
    for alphabet in (
        string.ascii_letters + string.digits + "+/",
        string.printable,
        "<>[]/private -!`~\n",
    ):
        text = "".join(draw.choices(alphabet, k=60_000))
        once = redact(text)
        assert redact(once) == once


def test_json_stays_json() -> None:
    record = {
        "a": f"PASSWORD={PASSWORD}",
        "b": {"token": TOKEN},
        "c": [f"-u kim:{PASSWORD}", "x\ny"],
    }
    assert json.loads(redact(json.dumps(record)))["c"][1] == "x\ny"


TOLD = "Xk93jfQ2" + "mPw7"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Password for kim: {}", id="for whom"),
        pytest.param("login with kim / {}", id="name and password"),
        pytest.param("credentials: kim / {}", id="credentials"),
        pytest.param(r"net use Z: \\srv\share {} /user:kim", id="net use"),
        pytest.param("openssl enc -aes-256-cbc -k {} -in a.bin", id="openssl"),
        pytest.param("sshpass -p {} ssh kim@host", id="sshpass"),
        pytest.param("mysql -u root -p{} shop", id="mysql"),
        pytest.param("echo {} | sudo -S systemctl restart nginx", id="sudo"),
        pytest.param("CREATE USER kim IDENTIFIED BY '{}'", id="SQL"),
        pytest.param("비밀번호는 {}야", id="Korean"),
        pytest.param("密码是{}", id="Chinese"),
        pytest.param("パスワードは{}です", id="Japanese"),
        pytest.param("password: {}!?", id="signs at its end"),
    ],
)
def test_passwords_told_to_people_and_programs(text: str) -> None:
    hidden = redact(text.format(TOLD))
    assert TOLD[:6] not in hidden
    assert "[REDACTED:password]" in hidden
    assert "!?" not in hidden


def test_a_token_in_base64_is_one() -> None:
    token = "ghp_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
    packed = base64.b64encode(token.encode()).decode()
    assert packed[:12] not in redact(f"the secret is {packed}")


@pytest.mark.parametrize(
    "text",
    [
        "the password is required",
        "login with google / github",
        "openssl rsa -in key.pem -out plain.pem",
        "Reset password for kim: done",
        "We hash passwords with bcrypt and compare them",
    ],
)
def test_talk_about_passwords_stays(text: str) -> None:
    assert redact(text) == text
