"""A multilingual corpus for tokenizers, generated: over a thousand lines.

`lines()` gives sentences in many scripts, systematic variations of them, and lines made to be awkward: emoji, combining
marks, controls, odd whitespace, code, long words, special tokens' own texts.
"""

import random
import unicodedata

SENTENCES = """
The quick brown fox jumps over the lazy dog.
Don't panic: it's only 3.14159 × 10⁻³, isn't it? (Well... maybe.)
Dr. Smith's e-mail is j.smith+test@example.co.uk; call +44 (0)20 7946 0958!
"Quoted" 'text' «guillemets» „Gänsefüßchen“ ‘curly’ “double” — dash – en ‐ hyphen
Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. STRASSE straße ẞ
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?
Luís argüia à Júlia que «brações, fé, chá, óxido, pôr, zângão» eram palavras do português.
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Zażółć gęślą jaźń.
Příliš žluťoučký kůň úpěl ďábelské ódy.
Kæmi ný öxi hér ykist þjófum nú bæði víl og ádrepa.
Höjt på den långsamma ångbåten åt zebran wienerbröd; blåbærsyltetøy på Ærøskøbing.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da IĞDIR ılık
Árvíztűrő tükörfúrógép. Jó foxim és don Quijote húszwattos lámpánál ülve egy pár bűvös cipőt készít.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів!
Ђаци и љубитељи џеза: Љиљана, Његош, Џон.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὁ ἄνθρωπος πολιτικὸν ζῷόν ἐστιν.
Բել դղյակի ձախ ժամն օֆ ազգությանը ցպահանջ չճշտած վնաս էր եւ փառք։
ჩვენს ხმაში წერია სიმღერა: თბილისი ᲗᲑᲘᲚᲘᲡᲘ
דג סקרן שט בים מאוכזב ולפתע מצא לו חברה. שָׁלוֹם עֲלֵיכֶם
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. اَلسَّلَامُ عَلَيْكُمْ ١٢٣٤٥
یہ اردو میں لکھا ہوا ایک جملہ ہے، کیا آپ سمجھ سکتے ہیں؟ ۴۵۶
این یک جملهٔ فارسی است که نیم‌فاصله دارد: می‌خواهم کتاب‌ها را ببینم.
ܫܠܡܐ ܥܠܝܟܘܢ ܐܚܝ̈ ܐܝܟܢܐ ܐܝܬܝܟܘܢ
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। क़ानून ज़रूर पढ़ें १२३
আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। ৭৮৯ কোটি
ਊੜਾ ਐੜਾ ਈੜੀ: ਸਤਿ ਸ੍ਰੀ ਅਕਾਲ ਜੀ
ગુજરાતી ભાષામાં લખેલું એક વાક્ય અહીં છે.
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்
దేశ భాషలందు తెలుగు లెస్స అని శ్రీకృష్ణదేవరాయలు అన్నారు.
ಕನ್ನಡ ನಾಡು ನುಡಿ ಎಲ್ಲರಿಗೂ ನಮಸ್ಕಾರ
മലയാളം ഒരു ദ്രാവിഡ ഭാഷയാണ്; അവൻ വന്നു.
සිංහල භාෂාව ශ්‍රී ලංකාවේ කතා කරයි.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓
ຂ້ອຍຮັກພາສາລາວ ແລະ ອາຫານລາວ
សូមស្វាគមន៍មកកាន់ប្រទេសកម្ពុជា
မြန်မာဘာသာစကားကို ကျွန်တော် သင်ယူနေပါတယ်။
བཀྲ་ཤིས་བདེ་ལེགས། ང་བོད་པ་ཡིན།
ሰላም ለዓለም፤ አማርኛ እናገራለሁ።
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ꮳꮃꭹ
ᐃᓄᒃᑎᑐᑦ ᐅᖃᐅᓯᖅ
ᠮᠣᠩᠭᠣᠯ ᠬᠡᠯᠡ Монгол хэл
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。我们在2024年的北京见面吧！
臺灣的繁體中文與香港嘅粵語：「你食咗飯未呀？」
いろはにほへと ちりぬるを わかよたれそ つねならむ。東京タワーは３３３メートルです。
ｶﾀｶﾅ ﾊﾝｶｸ ﾃﾞ ｶｸ カタカナ・ガギグゲゴ ｡｢｣ ㍻㌔㌘ ①②③ Ｆｕｌｌｗｉｄｔｈ ＡＢＣ１２３
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글 ㄱㄴㄷ
ㄅㄆㄇㄈ 注音符號 ㄧㄨㄩ 〇二三 々〆ヶ 𠮷野家 𩸽 𪚥
Tôi nói tiếng Việt: đường phố Hà Nội thật đẹp, phở ngon quá! ƯỚC ước
Mahalo nui loa, ʻOkina ʻōlelo Hawaiʻi; Ɛyɛ Ŋgɔ ɖeka Ọjọ́ àárọ̀ Yorùbá
Guarani: ñe'ẽ, ỹ, g̃uarã; Quechua: ñuqanchik; Lakota: wičhóiyapi
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ℵ₀ ≠ 2^ℵ₀, ∑ᵢ xᵢ² ≤ ∫ f(x)dx
𝓗𝓮𝓵𝓵𝓸 𝕎𝕠𝕣𝕝𝕕 𝒕𝒉𝒊𝒔 𝚒𝚜 𝔣𝔞𝔫𝔠𝔶 Ⓗⓔⓛⓛⓞ ʜᴇʟʟᴏ ﬁﬂ ﬀ ﬃ ﬆ Ǆ ǆ ĳ ŉ
₿ € £ ¥ ₹ ₽ ₩ ¢ ¤ № ℃ ™ © ® § ¶ † ‡ • … ‰ ½ ¾ ⅓
😀 😃 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷🇯🇵 ❤️ ☺︎ ✌🏿 👨🏻‍🚀 🤷🏼‍♀️ 1️⃣ #️⃣ 🧑‍🤝‍🧑 🫠
def f(x: int = 0) -> list[int]:\treturn [i**2 for i in range(x) if i % 2 != 0]  # comment
for (let i = 0; i < a.length; i++) { s += `${a[i]}\\n`; } /* done */ // => ok?
SELECT * FROM "users" WHERE name LIKE '%o''Brien%' AND id >= 42; -- drop table
<p class="x" id='y'>Hello&nbsp;<b>world</b> &amp; &lt;tag/&gt;</p><!-- no -->
{"key": [1, 2.5e-10, null, true], "nested": {"ünïcödé": "\\u00e9\\n"}}
https://example.com/a/b%20c?q=1&r=ü#frag  C:\\Users\\name\\file.txt  /usr/local/bin/../lib
git commit -m "fix: #123" && ./run.sh --flag=value 2>&1 | grep -E '^[a-z]+$'
[CLS] not special? [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk> <|endoftext|>
""".strip().split("\n")

AWKWARD = [
    "",
    " ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "a",
    "Z",
    ".",
    "...",
    "!?!?!?",
    "-" * 200,
    "_" * 77,
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "ab" * 400,
    "é" * 120,
    "e\u0301" * 120,
    "漢" * 150,
    "😀" * 60,
    "word " * 600,
    "tab\tseparated\tvalues\there",
    "line one\nline two\r\n\r\nline four\rline five\x0bvertical\x0cform",
    "  leading and trailing  ",
    "many     spaces\u2003em\u2009thin\u202fnarrow\u205fmath\u1680ogham\u2028line\u2029paragraph",
    "nul\x00byte bell\x07 escape\x1b[31m delete\x7f c1\x85\x9f",
    "soft\u00adhyphen zero\u200bwidth\u200cnon\u200djoiner\u2060word\u2060joiner",
    "bidi \u202eoverride\u202c \u2066isolate\u2069 \u200emark\u200f",
    "Zalgo: Z̸̢̛a̷͚̓l̵̰͝g̶̱̈o̴͖͌ t̷e̸x̶t̵",
    "combining first: \u0301\u0302\u0303 alone",
    "Å Å Å ﬁ ﬁ ö ö ̈o",
    "private \ue000 \uf8ff unassigned \u0378 noncharacter \uffff \U0001ffff replacement \ufffd",
    "tags \U000e0041\U000e0042 variation \u845b\U000e0100 ancient \U00012000\U00010330\U00010900",
    "trailing newline\n",
    "[MASK]",
    "[MASK][MASK]",
    "a[MASK]b",
    " <mask> ",
    "x<mask>y </s></s> <s>z",
    "[mask] [cls] <MASK>",
    "'s 't 're 've 'm 'll 'd 'S 'T",
    "0 00 007 1,000,000.00 1e10 0x1F 12:34:56 2024-02-29 ½",
    "CamelCaseWord snake_case_word kebab-case-word SCREAMING_CASE",
]

# Ranges of code points from which random words are drawn.
BLOCKS = [
    (0x21, 0x7E), (0xA1, 0xFF), (0x100, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x4FF),
    (0x531, 0x587), (0x5D0, 0x5EA), (0x620, 0x6FF), (0x710, 0x74F), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF),
    (0xE01, 0xE5B), (0xF00, 0xFBC), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
    (0x13A0, 0x13F5), (0x1780, 0x17F9), (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x209C),
    (0x20A0, 0x20BF), (0x2100, 0x214F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F), (0x2600, 0x27BF),
    (0x2E80, 0x2FD5), (0x3001, 0x303F), (0x3041, 0x30FF), (0x3105, 0x312F), (0x3200, 0x33FF), (0x3400, 0x3500),
    (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFB50, 0xFDFB),
    (0xFE20, 0xFE2F), (0xFE30, 0xFE6B), (0xFF01, 0xFFEE), (0x10000, 0x1005D), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF),
    (0x20000, 0x20100),
]  # fmt: skip


def _variations(line: str) -> list[str]:
    return [
        line.upper(),
        line.swapcase(),
        unicodedata.normalize("NFD", line),
        unicodedata.normalize("NFKC", line),
        f"  {line}\t",
        line.replace(" ", ""),
        line[::-1],
    ]


def _random_line(rng: random.Random, block: tuple[int, int]) -> str:
    words = []
    for _ in range(rng.randint(1, 12)):
        first, last = block if rng.random() < 0.8 else rng.choice(BLOCKS)
        words.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 9))))
    return rng.choice([" ", " ", " ", "", ", ", "\u00a0", "-"]).join(words)


def _mixed_line(rng: random.Random) -> str:
    return rng.choice([" ", "", "\n", " | "]).join(rng.choice(rng.choice(SENTENCES).split(" ")) for _ in range(15))


def lines() -> list[str]:
    """The corpus: distinct lines, the same ones in the same order with every call."""
    rng = random.Random(20240229)
    made = [*SENTENCES, *AWKWARD]
    for sentence in SENTENCES:
        made += _variations(sentence)
    for block in BLOCKS:
        made += [_random_line(rng, block) for _ in range(10)]
    made += [_mixed_line(rng) for _ in range(220)]
    return list(dict.fromkeys(made))
