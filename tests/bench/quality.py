#!/usr/bin/env python3
"""How much quantisation changes sentence embeddings: cosines of MiniLM's to those in float32, and what a load costs.

    python tests/bench/quality.py [--dtypes q8 q4] [--output tests/bench/results/quality.json]

prints, for each dtype, the mean, the 5th percentile and the least cosine over the sentences below, the bytes of the
weights in kernel memory and the seconds of the load from the disk, quantisation included; the same goes to a JSON file.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from inpage import pipeline
from tests import models

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DTYPES = ("fp32", "fp16", "q8", "q8g", "q4z", "q4")
BATCH = 16

CORPUS = """
The ferry to the islands leaves at a quarter past six and takes the cars on first.
Please water the tomatoes before the sun gets too strong.
Our quarterly revenue fell by three percent, mostly because of the weaker yen.
How do I reset the password of my account without access to the old e-mail address?
A proof by induction needs a base case and a step from n to n + 1.
The patient was given 40 mg of the drug twice a day for two weeks.
She had never seen snow until she moved to the mountains.
def mean(values): return sum(values) / len(values)
The court ruled that the contract was void from the beginning.
Whales breathe air, although they spend their whole lives in the sea.
Turn left at the church, then follow the river for about two miles.
I would like a table for four by the window, if that is possible.
The moon's gravity causes two high tides each day.
He scored in the last minute, and the stadium went silent.
Neural networks learn by following the gradient of a loss.
Wash at thirty degrees, do not tumble dry, iron on the wrong side.
The recipe asks for two eggs, a cup of sugar and a pinch of salt.
Inflation is the rate at which prices rise over a period of time.
When was the first transatlantic telegraph cable laid?
The violinist tuned her instrument while the audience took their seats.
Your parcel could not be delivered because nobody was at home.
Photosynthesis turns carbon dioxide and water into sugar and oxygen.
The old bridge was closed to lorries after cracks had been found in its piers.
My laptop's battery drains within an hour even when the screen is off.
Two witnesses said that the car had been blue, a third one that it was green.
The museum is closed on Mondays except on public holidays.
A stitch in time saves nine.
The senator refused to comment on the allegations.
Bees tell each other by a dance where the flowers are.
What is the boiling point of ethanol at normal pressure?
They painted the kitchen yellow and regretted it within a week.
The committee will publish its recommendations in the spring.
Error 404: the page that you asked for does not exist.
Her grandmother spoke four languages and could write in none of them.
The compiler warns about variables that are never read.
An earthquake of magnitude 6.2 shook the coast early this morning.
It is cheaper to book the hotel and the flight together.
Could you send me the minutes of yesterday's meeting?
Aluminium is light, does not rust and conducts electricity well.
The novel tells of a lighthouse keeper who collects lost letters.
Interest on the loan is paid at the end of each month.
The children built a raft of barrels and planks.
Add the onions and fry them slowly until they are golden.
The vaccine protects nine of ten people for at least five years.
We apologise for the delay of the train to the airport.
In chess a bishop always stays on squares of one colour.
SELECT name, price FROM products WHERE stock > 0 ORDER BY price;
The desert is hot by day and bitterly cold at night.
Nobody had told the new manager about the broken lift.
The treaty was signed by twelve states and ratified by nine.
He plays the drums in a band that nobody has heard of.
Light takes a little over eight minutes from the sun to the earth.
The warranty does not cover damage by water.
A black cat slept on the bonnet of the warm car.
Shares of the airline rose after it had raised its forecast.
Which of these two phones takes better pictures in the dark?
The river freezes over in January and thaws in late March.
You must not park in front of the fire station.
Most of the island's electricity comes from the wind.
The orchestra played the symphony without a conductor.
I cancelled my subscription two months ago and am still being charged.
Iron ore is shipped from the north of the country to the smelters in the south.
The dentist recommended to brush for two minutes, morning and evening.
The detective noticed that the clock had stopped at ten past four.
A matrix is invertible if and only if its determinant is not zero.
We walked along the beach and looked for amber after the storm.
The new tax applies to companies with more than fifty employees.
Yeast makes the dough rise by producing carbon dioxide.
The satellite lost contact with the ground station on its third orbit.
The shop around the corner sells bread, newspapers and fishing licences.
Is it safe to take ibuprofen together with paracetamol?
His speech was short, funny and entirely beside the point.
The glacier has lost a third of its length in fifty years.
Tighten the four screws crosswise and check the pressure again.
Refugees waited for days at the border without shelter.
The opposite of courage is not cowardice but conformity.
A good espresso takes about twenty-five seconds to run.
The port was enlarged so that the biggest container ships can enter it.
The teacher asked the class to write about their favourite place.
This film is far too long, but the last scene is unforgettable.
Bacteria can become resistant to antibiotics that are used too often.
The keys are under the third flower pot from the left.
The union called for a strike after the talks had failed.
Wolves have returned to the forests of the border region.
The function returns None if the key is not in the dictionary.
Our flight was diverted because of fog.
The goalkeeper saved two penalties and became the hero of the night.
Granite forms when magma cools slowly, deep below the surface.
She sold her bicycle to buy a second-hand piano.
Applications must be received by the thirtieth of June.
The library lends not only books but also tools and cake tins.
Water expands when it freezes, which is why pipes burst in winter.
The mayor opened the new swimming pool by jumping into it.
Add a comma before the conjunction that joins two main clauses.
The stock cube makes the soup far too salty.
Owls can turn their heads by about two hundred and seventy degrees.
The battery of an electric car loses capacity over the years.
We could not agree on a name for the dog.
The emperor moved his capital to the east in the year 330.
Great service, friendly staff, but the room smelled of paint.
The signal is sampled at 48 kHz and quantised with 24 bits.
It had rained all night, and the path was deep in mud.
An auction of rare stamps raised more than two million pounds.
The printer is out of magenta ink again.
The bird builds its nest of moss, hair and spiders' silk.
Every citizen over eighteen has the right to vote.
The actor learned Icelandic for a role of only three minutes.
Cut the paper along the dotted line and fold it twice.
The submarine stayed under the ice for seventy days.
Prices of olive oil have doubled since the drought.
"""


def sentences() -> list[str]:
    """Over 200 texts: single sentences, pairs of them, and paragraphs."""
    single = CORPUS.strip().splitlines()
    pairs = [f"{a} {b}" for a, b in zip(single[::2], single[-1::-2], strict=True)]
    paragraphs = [" ".join(single[i::count]) for count in (21, 35) for i in range(count)]  # of five and of three
    return [*single, *pairs, *paragraphs]


def embed(dtype: str, texts: list[str]) -> tuple[np.ndarray[Any, Any], float, int]:
    """Embeddings [texts, dim] of length 1, seconds of the load, bytes of the weights."""
    begin = time.perf_counter()
    with pipeline("feature-extraction", str(models.path(MODEL)), dtype=dtype) as extract:
        seconds = time.perf_counter() - begin
        batches = [
            np.asarray(extract(texts[i : i + BATCH], pooling="mean", normalize=True))
            for i in range(0, len(texts), BATCH)
        ]
        return np.concatenate(batches), seconds, extract.model.get_memory_footprint()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, help=f"default: {' '.join(DTYPES)}")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "bench" / "results" / "quality.json")
    options = parser.parse_args()
    texts = sentences()
    exact = embed("fp32", texts)[0]
    rows: list[dict[str, Any]] = []
    print(f"{MODEL}, {len(texts)} texts, cosine to fp32")
    print(f"{'dtype':6}{'mean':>10}{'5 %':>10}{'least':>10}{'MB':>8}{'load s':>8}")
    for dtype in options.dtypes:
        embeddings, seconds, nbytes = embed(dtype, texts)
        cosines = (embeddings * exact).sum(1)
        mean, low, least = (round(float(v), 5) for v in (cosines.mean(), np.quantile(cosines, 0.05), cosines.min()))
        rows.append({"dtype": dtype, "mean": mean, "percentile_5": low, "least": least, "bytes": nbytes,
                     "load_seconds": round(seconds, 3)})  # fmt: skip
        print(f"{dtype:6}{mean:10.5f}{low:10.5f}{least:10.5f}{nbytes / 1e6:8.1f}{seconds:8.2f}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"model": MODEL, "texts": len(texts), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
