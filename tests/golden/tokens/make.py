"""Writes hostile.jsonl: 2,000 hostile strings with the token ids of llama.cpp.

    python make.py --gguf MODEL.gguf --node-folder FOLDER

The strings come from a fixed seed and from code point ranges written here, never from the
interpreter's Unicode tables, so the same Python version makes the same strings.
Only the standard library is used; llama.cpp is reached through tokenise.mjs.
"""

import argparse
import json
import pathlib
import random
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20240613
TOTAL = 2000
SPECIAL = 200

SPECIAL_TEXTS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>",
    "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>",
    "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>",
    "<jupyter_script>", "<empty_output>",
]
ALMOST_SPECIAL = [
    "<|im_start|", "<|im_start", "|im_start|>", "<|im_start |>", "<|IM_START|>", "< |im_end|>",
    "<||im_end||>", "<<|im_end|>", "<|im_end|>>", "<|im_end|><", "<|im_<|im_end|>end|>", "<repo_name",
    "repo_name>", "<repo name>", "<repo_names>", "<reponame", "<|endoftext|", "<|endoftext>",
    "<endoftext>", "<s>", "</s>", "<unk>", "<|eot_id|>", "[INST]", "<|im_sta", "rt|>", "<|", "|>",
    "<\u200b|im_start|>", "\uff1c|im_start|\uff1e", "<file_sep><file_sep", "<jupyter_>", "<empty_output/>",
]

# The first digit of ten, in many scripts.
DIGIT_ZEROS = [
    0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6,
    0xE50, 0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0,
    0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0,
    0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16A60, 0x16AC0, 0x16B50,
    0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E950, 0x1FBF0,
]
# Numbers that are not decimal digits: fractions, superscripts, romans, circles, old scripts.
OTHER_NUMBERS = [
    (0xB2, 0xB3), (0xB9, 0xB9), (0xBC, 0xBE), (0x9F4, 0x9F9), (0xB72, 0xB77), (0xBF0, 0xBF2),
    (0xC78, 0xC7E), (0xD58, 0xD5E), (0xD70, 0xD78), (0xF2A, 0xF33), (0x1369, 0x137C),
    (0x16EE, 0x16F0), (0x17F0, 0x17F9), (0x19DA, 0x19DA), (0x2070, 0x2070), (0x2074, 0x2079),
    (0x2080, 0x2089), (0x2150, 0x2182), (0x2185, 0x2189), (0x2460, 0x249B), (0x24EA, 0x24FF),
    (0x2776, 0x2793), (0x2CFD, 0x2CFD), (0x3007, 0x3007), (0x3021, 0x3029), (0x3038, 0x303A),
    (0x3192, 0x3195), (0x3220, 0x3229), (0x3248, 0x324F), (0x3251, 0x325F), (0x3280, 0x3289),
    (0x32B1, 0x32BF), (0xA6E6, 0xA6EF), (0xA830, 0xA835), (0x10107, 0x10133), (0x10140, 0x10178),
    (0x10320, 0x10323), (0x10341, 0x10341), (0x103D1, 0x103D5), (0x10A40, 0x10A48),
    (0x12400, 0x1246E), (0x1D2C0, 0x1D2D3), (0x1D2E0, 0x1D2F3), (0x1D360, 0x1D378),
    (0x1EC71, 0x1ECAB), (0x1F100, 0x1F10C),
]
# Look like numbers, but are letters, marks or symbols.
NOT_NUMBERS = [0x4E00, 0x4E8C, 0x4E09, 0x96F6, 0x767E, 0x2183, 0x2184, 0x24B6, 0x1F51F, 0x20E3,
               0xFE0F, 0x1D355, 0x2116, 0x06DD, 0x0600, 0x1F522, 0x3105]
WHITESPACE = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028,
              0x2029, 0x202F, 0x205F, 0x3000]
NEAR_WHITESPACE = [0x1C, 0x1D, 0x1E, 0x1F, 0x8, 0x7F, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF,
                   0x115F, 0x3164, 0xFFA0, 0x2800, 0xAD, 0x34F, 0x61C, 0x200E, 0x200F, 0xFFFC, 0xFFFD]
COMBINING = [(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F),
             (0x900, 0x903), (0x93A, 0x93C), (0x93E, 0x94F), (0xE31, 0xE31), (0xE34, 0xE3A),
             (0xE47, 0xE4E), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F),
             (0x3099, 0x309A), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F), (0x1D165, 0x1D169),
             (0xE0100, 0xE01EF)]
LETTERS = [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2C1), (0x370, 0x373),
           (0x391, 0x3A1), (0x3A3, 0x3FF), (0x400, 0x481), (0x531, 0x556), (0x561, 0x587),
           (0x5D0, 0x5EA), (0x620, 0x64A), (0x671, 0x6D3), (0x905, 0x939), (0x985, 0x98C),
           (0xE01, 0xE30), (0x10A0, 0x10C5), (0x10D0, 0x10FA), (0x1200, 0x1248), (0x13A0, 0x13F5),
           (0x1E00, 0x1F15), (0x2C00, 0x2CE4), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x3105, 0x312F),
           (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF21, 0xFF5A),
           (0x10400, 0x1044F), (0x12000, 0x12399), (0x1D400, 0x1D454), (0x20000, 0x2A6DF),
           (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF)]
RTL = [(0x5D0, 0x5EA), (0x620, 0x64A), (0x6F0, 0x6F9), (0x660, 0x669), (0x710, 0x72F), (0x780, 0x7A5),
       (0x7CA, 0x7EA), (0xFB50, 0xFBB1), (0xFDF0, 0xFDFC), (0x10900, 0x10915), (0x1E900, 0x1E943)]
BIDI = [0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x2069, 0x61C]
PUNCTUATION = [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0xA1, 0xBF), (0x2010, 0x2027),
               (0x2030, 0x205E), (0x20A0, 0x20C0), (0x2190, 0x23FF), (0x2500, 0x27BF),
               (0x3001, 0x3020), (0xFF01, 0xFF0F), (0x1D100, 0x1D126)]
PRIVATE = [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
# Unassigned in Unicode 15.1. The second list holds code points that Unicode 16 and 17 made
# letters or digits: llama.cpp's tables are those of 15.1, newer tables split these otherwise.
UNASSIGNED = [(0x378, 0x379), (0x380, 0x383), (0x530, 0x530), (0x5C8, 0x5CF), (0x2FE0, 0x2FEF),
              (0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF), (0x1FFFE, 0x1FFFF), (0x3FFFE, 0x3FFFF),
              (0x40000, 0x7FFFF), (0x80000, 0xBFFFF), (0xC0000, 0xDFFFF), (0xE0002, 0xE001F),
              (0x10FFFE, 0x10FFFF)]
NEWER = [(0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105C9),
         (0x10D40, 0x10D4D), (0x10D50, 0x10D65), (0x11380, 0x11389), (0x116D0, 0x116E3),
         (0x11BC0, 0x11BE0), (0x11BF0, 0x11BF9), (0x13460, 0x143FA), (0x16100, 0x1611D),
         (0x16130, 0x16139), (0x16D40, 0x16D6C), (0x16D70, 0x16D79), (0x1CCF0, 0x1CCF9),
         (0x1E5D0, 0x1E5ED), (0x1E5F1, 0x1E5FA), (0x11DE0, 0x11DE9), (0x16EA0, 0x16EB8),
         (0x323B0, 0x33479)]
# Bytes for which the vocabulary has no token: as control characters, and the planes whose
# UTF-8 starts with F1 (planes 4 to 7) or F2 (planes 8 to 11).
NO_BYTE_TOKEN = [(0x4, 0x4), (0x6, 0x6), (0x13, 0x14), (0x16, 0x16), (0x1D, 0x1D),
                 (0x40000, 0x7FFFF), (0x80000, 0xBFFFF)]
EMOJI = [
    "\U0001F600", "\U0001F469\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\u2764\uFE0F\u200D\U0001F525",
    "\U0001F44D\U0001F3FD", "\U0001F1EB\U0001F1F7", "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F",
    "1\uFE0F\u20E3", "#\uFE0F\u20E3", "\U0001F9D1\U0001F3FF\u200D\U0001F4BB", "\u263A\uFE0E", "\U0001FAE8",
    "\U0001F468\u200D\u2695\uFE0F", "\U0001F3F3\uFE0F\u200D\U0001F308", "\U0001F525", "\u2603", "\U0001F1FF",
]
WORDS = """the of and I you it's hello world Paris tokenizer naive na\u00efve re\u0301sume\u0301 R\u00e9sum\u00e9 Stra\u00dfe \u0130stanbul
\u0131 \u01c5 \ufb01ancee caf\u00e9 cafe\u0301 Na\u0308ive \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u0441\u043c\u0435\u0448\u0430nn\u044b\u0439 \u4f60\u597d \u4e16\u754c \u6771\u4eac\u90fd \u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca
\uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 camelCase snake_case SCREAMING_CASE kebab-case 3rd
10th 1,000.50 0x1F 1e-9 v1.2.3 50% $19.99 http://example.com/?a=1&b=%20 a@b.co C++ x\u00b2 H\u2082O \u00bd\u00a0cup
don't O'Reilly '90s rock'n'roll ... \u2026 -- \u2014 !? ?! \u201cquoted\u201d \u00abcit\u00e9\u00bb (a) [b] {c} #tag @user""".split()
CODE = [
    "def f(x):\n    return x + 1\n", "\tif (a == b) {\n\t\treturn;\n\t}\n", "for(int i=0;i<10;++i){s+=a[i];}",
    "let v: Vec<u8> = vec![0; 16];\r\n", "SELECT * FROM t WHERE id = 'x' -- y\n", "<div class=\"a\">&nbsp;</div>",
    "{\"a\": [1, 2, {\"b\": null}]}", "x = lambda *a, **k: None  # noqa\n", "#!/bin/sh\nset -e\n", "a?.b ?? c!.d",
    "printf(\"%d\\n\", 42);", "/* c */ // d\n", "    \n    \n        pass\n", "R\"(raw)\"", "`${a}`", "\\u0041\\x00",
    "fn main() -> Result<(), Box<dyn Error>> {\n    Ok(())\n}\n", "import numpy as np\n\n\nprint(np.pi)\n",
    "0b1010 & 0xFF >> 3 ^ ~1", "| a | b |\n|---|---|\n| 1 | 2 |\n", "$\\frac{1}{2} \\leq x^{2}$", "::<>", "=>", "!==", "<<<<<<< HEAD\n=======\n>>>>>>>\n",
]
CONTRACTIONS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Re", "rE", "VE", "Ve", "M", "LL",
                "Ll", "lL", "D", "\u017f", "x", "r", "v", "l", "e", "ss", "red", "lls", "ts", "", " s", "1"]
APOSTROPHES = ["'", "'", "'", "\u2019", "\u2018", "\u02bc", "`", "\u00b4", "''", "\uff07", "\u2032", "\"", " '", "\u201b"]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--gguf", required=True)
    args.add_argument("--node-folder", required=True)
    args.add_argument("--out", default=HERE / "hostile.jsonl")
    args = args.parse_args()
    lines = "".join(json.dumps({"text": t, "special": s}) + "\n" for t, s in strings())
    done = subprocess.run(
        ["node", str(HERE / "tokenise.mjs"), args.gguf, args.node_folder],
        input=lines, stdout=subprocess.PIPE, text=True, check=True)
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(o["text"], o["special"]) for o in out] == [
        (o["text"], o["special"]) for o in map(json.loads, lines.splitlines())]
    pathlib.Path(args.out).write_text(done.stdout)
    print(len(out), "strings,", sum(o["special"] for o in out), "with special parsing,",
          sum(len(o["ids"]) for o in out), "ids")


def strings():
    rng = random.Random(SEED)
    seen, out = set(), []

    def add(text, special=False):
        if (text, special) in seen or any(0xD800 <= ord(c) < 0xE000 for c in text):
            return
        seen.add((text, special))
        out.append((text, special))

    for text, special in fixed():
        add(text, special)
    makers = [planes, marks, emoji, rtl, control, digits, digits, numbers, spaces, spaces, edges,
              contractions, code, cjk, words, words, word_soup, long_word, newer, missing_bytes,
              letter_edges, plain_special, repeats]
    plain = TOTAL - SPECIAL
    while sum(not s for _, s in out) < plain:
        add(makers[rng.randrange(len(makers))](rng))
    while len(out) < TOTAL:
        add(parsed_special(rng), True)
    return out


def fixed():
    yield from [("", False), ("", True), (" ", False), ("\x00", False), ("a\x00b", False),
                ("\x00\x00", True), ("\r", False), ("\r\n", False), ("\n\r", False), ("a\rb", False),
                ("\r\r", False), ("a \r b", False), ("\ufeffhello", False), ("\ufeff", False),
                ("\ufffd", False), ("\ufffe\uffff", False), ("\U0010ffff", False),
                ("\U0001ffff", False), ("'", False), ("''", False), ("'s", False), ("'S", False),
                (" 's", False), ("' s", False), ("\u2019s", False), ("'\u017f", False)]
    for text in SPECIAL_TEXTS:
        yield text, False
        yield text, True
    for text in ALMOST_SPECIAL:
        yield text, False
    for text in ALMOST_SPECIAL[:14]:
        yield text, True
    for c in WHITESPACE + NEAR_WHITESPACE:
        yield f"a{chr(c)}b", False
        yield f"{chr(c)} {chr(c)}{chr(c)}x", False
    for n in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 200]:
        yield " " * n, False
        yield " " * n + "x", False
        yield "\n" * n + "x", False
        yield "\n" + " " * n + "1", False
    # Every control character, and each one next to a letter, a digit and a space.
    for c in [*range(0x20), *range(0x7F, 0xA0)]:
        yield f"{chr(c)}a {chr(c)}1{chr(c)} ", False
    for n in [100, 1000, 5000]:
        yield "a" * n, False
        yield "7" * n, False
    yield "\u00e9" * 700, False
    yield "ab" * 1500, False
    yield "!" * 777, False
    yield "\u4e2d" * 600, False
    yield "x" + "\u0301" * 400, False
    yield "\U0001F469\u200D" * 150, False
    yield "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face" \
          "<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", True


def one(rng, ranges):
    low, high = ranges[rng.randrange(len(ranges))]
    return chr(rng.randint(low, high))


def some(rng, ranges, low, high):
    return "".join(one(rng, ranges) for _ in range(rng.randint(low, high)))


def pick(rng, items):
    return items[rng.randrange(len(items))]


def mixed(rng, makers, low, high):
    return "".join(pick(rng, makers)(rng) for _ in range(rng.randint(low, high)))


def space(rng):
    return chr(pick(rng, WHITESPACE))


def ascii_space(rng):
    return pick(rng, [" ", " ", " ", "\n", "\t", "\r", "\r\n", "  "])


def digit(rng):
    return chr(pick(rng, DIGIT_ZEROS) + rng.randrange(10))


def word(rng):
    return pick(rng, WORDS)


def planes(rng):
    def any_code_point(rng):
        plane = rng.choice([0, 0, 0, 1, 1, 2, 3, rng.randrange(4, 14), 14, 15, 16])
        while True:
            c = plane * 0x10000 + rng.randrange(0x10000)
            if not 0xD800 <= c < 0xE000:
                return chr(c)
    return mixed(rng, [any_code_point, any_code_point, any_code_point, ascii_space, word], 1, 30)


def marks(rng):
    return mixed(rng, [lambda r: one(r, LETTERS) + some(r, COMBINING, 0, 4), lambda r: one(r, COMBINING),
                       ascii_space, digit], 1, 20)


def emoji(rng):
    return mixed(rng, [lambda r: pick(r, EMOJI), lambda r: pick(r, EMOJI), ascii_space, word,
                       lambda r: "\u200d", lambda r: "\ufe0f"], 1, 12)


def rtl(rng):
    return mixed(rng, [lambda r: some(r, RTL, 1, 8), lambda r: some(r, RTL, 1, 8), ascii_space, word,
                       lambda r: chr(pick(r, BIDI)), lambda r: one(r, PUNCTUATION)], 1, 12)


def control(rng):
    return mixed(rng, [lambda r: chr(r.randrange(0x20)), lambda r: chr(r.randrange(0x7F, 0xA0)),
                       lambda r: chr(pick(r, NEAR_WHITESPACE)), word, ascii_space], 1, 16)


def digits(rng):
    zero = pick(rng, DIGIT_ZEROS)
    run = lambda r: "".join(chr(zero + r.randrange(10)) for _ in range(r.randint(1, 40)))
    ascii_run = lambda r: str(r.randrange(10 ** r.randint(1, 25)))
    return mixed(rng, [run, ascii_run, lambda r: pick(r, [" ", ".", ",", "-", "e", "x", "  ", "\n", "'", ":"])], 1, 8)


def numbers(rng):
    return mixed(rng, [lambda r: some(r, OTHER_NUMBERS, 1, 5), digit, lambda r: chr(pick(r, NOT_NUMBERS)),
                       ascii_space, lambda r: one(r, LETTERS), lambda r: one(r, PUNCTUATION)], 1, 14)


def spaces(rng):
    run = lambda r: "".join(space(r) for _ in range(r.randint(1, 6)))
    same = lambda r: space(r) * r.randint(1, 12)
    return mixed(rng, [run, same, ascii_space, word, digit, lambda r: one(r, PUNCTUATION),
                       lambda r: one(r, LETTERS)], 1, 12)


def edges(rng):
    lead = pick(rng, ["", " ", "  ", "   ", "\n", "\t", "\u00a0", "\r\n", " \n", "\n "])
    tail = pick(rng, ["", " ", "  ", "   ", "\n", "\t", "\u3000", "\r\n", " \n", "\n ", "\r"])
    return lead + " ".join(word(rng) for _ in range(rng.randint(0, 5))) + tail


def contractions(rng):
    piece = lambda r: (pick(r, ["I", "you", "it", "DON", "5", "\u00e9", "", " ", "!", "\u4f60", "we", "''"])
                       + pick(r, APOSTROPHES) + pick(r, CONTRACTIONS))
    return mixed(rng, [piece, piece, lambda r: " ", lambda r: "\n"], 1, 10)


def code(rng):
    return mixed(rng, [lambda r: pick(r, CODE), lambda r: pick(r, CODE), ascii_space, word,
                       lambda r: " " * r.randint(1, 20), lambda r: "\t" * r.randint(1, 5)], 1, 6)


def cjk(rng):
    return mixed(rng, [lambda r: some(r, [(0x4E00, 0x9FFF)], 1, 10), lambda r: some(r, [(0x3041, 0x3096), (0x30A1, 0x30FC)], 1, 8),
                       lambda r: some(r, [(0xAC00, 0xD7A3)], 1, 8), lambda r: pick(r, ["\u3001", "\u3002", "\uff01", "\u300c", "\u300d", "\u3000"]),
                       lambda r: some(r, [(0x1100, 0x11FF)], 1, 4), digit, ascii_space,
                       lambda r: some(r, [(0x20000, 0x2A6DF), (0x2EBF0, 0x2EE5D), (0x30000, 0x3134A)], 1, 3)], 1, 8)


def words(rng):
    return mixed(rng, [word, word, lambda r: " ", lambda r: " ", ascii_space, lambda r: one(r, PUNCTUATION)], 2, 24)


def word_soup(rng):
    return mixed(rng, [word, word, digit, lambda r: one(r, LETTERS), lambda r: one(r, PUNCTUATION), space,
                       lambda r: one(r, PRIVATE), lambda r: one(r, UNASSIGNED), lambda r: pick(r, EMOJI)], 3, 24)


def long_word(rng):
    kind = rng.randrange(4)
    n = rng.randint(60, 400)
    if kind == 0:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))
    if kind == 1:
        return "".join(rng.choice("ETAOINSHRDLUetaoinshrdlu") for _ in range(n))
    if kind == 2:
        return " " + some(rng, LETTERS, 30, 120)
    return "".join(rng.choice("=-_*#~./\\|<>") for _ in range(n // 4))


def newer(rng):
    return mixed(rng, [lambda r: some(r, NEWER, 1, 3), lambda r: some(r, NEWER, 1, 3), ascii_space, word,
                       lambda r: "'s", lambda r: one(r, LETTERS)], 1, 8)


def missing_bytes(rng):
    return mixed(rng, [lambda r: one(r, NO_BYTE_TOKEN), lambda r: one(r, NO_BYTE_TOKEN), ascii_space, word, digit], 1, 10)


def letter_edges(rng):
    """Puts a code point at the edge of a range between a space and a contraction."""
    low, high = pick(rng, LETTERS + OTHER_NUMBERS + COMBINING + PUNCTUATION + PRIVATE + UNASSIGNED)
    c = min(max(pick(rng, [low - 1, low, high, high + 1]), 0), 0x10FFFF)
    return f"  {chr(c)}'s {chr(c)}a{chr(c)}1  {chr(c)}"


def plain_special(rng):
    return mixed(rng, [lambda r: pick(r, SPECIAL_TEXTS), lambda r: pick(r, ALMOST_SPECIAL), ascii_space, word], 1, 6)


def repeats(rng):
    unit = pick(rng, [word, digit, space, lambda r: one(r, PUNCTUATION), lambda r: pick(r, EMOJI)])(rng)
    return unit * rng.randint(2, 60)


def parsed_special(rng):
    return mixed(rng, [lambda r: pick(r, SPECIAL_TEXTS), lambda r: pick(r, SPECIAL_TEXTS), lambda r: pick(r, ALMOST_SPECIAL),
                       ascii_space, space, word, digit, lambda r: one(r, LETTERS), lambda r: pick(r, EMOJI),
                       lambda r: "'s", lambda r: one(r, NO_BYTE_TOKEN), lambda r: pick(r, CODE)], 1, 9)


if __name__ == "__main__":
    main()
