"""Continue a few prompts with the engine in this process: no server, no network.

python examples/offline_inference.py --help
"""

import argparse
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diptych.core.errors import DiptychError
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.offline import LLM, Completion
from diptych.supervisor.checkpoint import embedded_folder

PROMPTS = ["The capital of France is", "The sky is blue because", "Once upon a time"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="*", default=PROMPTS, help="default: three short ones")
    parser.add_argument("--checkpoint", type=Path, help="model folder; default: the bundled one")
    parser.add_argument(
        "--numerics", default="served", choices=["served", "cache", "exact", "exact64"]
    )
    parser.add_argument("--max-new", type=int, default=32, help="tokens a prompt")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = greedy")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0, help="the same seed repeats the same text")
    return parser.parse_args()


def generate(llm: LLM, prompts: list[str], sampling: Sampling, max_new: int) -> list[Completion]:
    columns = (TextColumn("tokens"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("tokens", total=len(prompts) * max_new)

        def on_step(output: StepOutput) -> None:
            progress.advance(task, sum(len(row.token_ids) for row in output.rows))

        return llm.generate(prompts, sampling, max_new, on_step)


def main() -> None:
    options = parse()
    sampling = Sampling(options.temperature, options.top_p, seed=options.seed)
    try:
        sampling.check()
        checkpoint = options.checkpoint or embedded_folder()
        print(f"loading {checkpoint}")
        llm = LLM(checkpoint, numerics=options.numerics)
        began_s = time.perf_counter()
        completions = generate(llm, options.prompts, sampling, options.max_new)
    except DiptychError as error:
        raise SystemExit(f"error: {error.message}") from None
    seconds = time.perf_counter() - began_s
    for prompt, completion in zip(options.prompts, completions, strict=True):
        print(f"\n{prompt!r}\n  -> {completion.text!r} ({completion.finish})")
    tokens = sum(len(completion.token_ids) for completion in completions)
    print(f"\n{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
