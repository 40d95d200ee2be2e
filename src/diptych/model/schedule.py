"""The schedule: which layer owns a compressed cache, which selects from one, which only reads.

Four roles follow from the lists of a configuration. A layer of ratio 0 has its sliding window
only. A *KV source* compresses, scores and selects. An *index source* behind it scores and selects
anew from the same cache, perhaps within the source's candidate blocks. All others take the cache
and the selection of the layers before them. Every layer has its own sliding window besides.
"""

from dataclasses import dataclass

from diptych.model.fields import Fields


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer of the schedule does besides its own sliding window."""

    index: int
    ratio: int  # tokens an entry of its compressed cache; 0: sliding window only
    kv_source: int | None  # layer whose compressed cache it reads
    index_source: int | None  # layer whose selection it uses
    candidate_source: int | None  # layer whose candidate blocks bound its own selection
    engram: int | None  # which Engram table it reads

    @property
    def owns_cache(self) -> bool:
        return self.kv_source == self.index

    @property
    def selects(self) -> bool:
        return self.index_source == self.index


def schedule(
    text: Fields, candidate: int, engram_layers: tuple[int, ...], drafts: int
) -> tuple[LayerSpec, ...]:
    """The role of every layer; `candidate` is -1 without candidate blocks."""
    num_layers = text.whole("num_hidden_layers")
    ratios = text.whole_list("compress_ratios")
    kv_sources = text.whole_list("kv_source_layer_ids")
    index_sources = text.whole_list("index_source_layer_ids")
    if len(ratios) != num_layers + drafts:
        raise text.wrong("compress_ratios", f"{num_layers} + {drafts} entries (layers + drafts)")
    if any(ratio not in (0, 1, 2) for ratio in ratios) or any(ratios[num_layers:]):
        raise text.wrong("compress_ratios", "each of 0, 1, 2, and 0 for every draft layer")
    for key, sources in (
        ("kv_source_layer_ids", kv_sources),
        ("index_source_layer_ids", index_sources),
    ):
        if any(s >= num_layers or ratios[s] == 0 for s in sources):
            raise text.wrong(key, "layers with a compress ratio above 0")
    if not set(kv_sources) <= set(index_sources):
        raise text.wrong("index_source_layer_ids", f"every KV source of {kv_sources}")
    if candidate >= 0 and candidate not in kv_sources:
        raise text.wrong("candidate_source_layer_id", f"-1 or one of {kv_sources}")

    layers = []
    for index in range(num_layers):
        ratio = ratios[index]
        kv_source = max((s for s in kv_sources if s <= index), default=None) if ratio else None
        index_source = max((s for s in index_sources if s <= index), default=None)
        if ratio and (kv_source is None or ratios[kv_source] != ratio):
            raise text.wrong(
                "kv_source_layer_ids", f"a source of ratio {ratio} at or before layer {index}"
            )
        reselects = index_source == index and kv_source != index
        layers.append(
            LayerSpec(
                index=index,
                ratio=ratio,
                kv_source=kv_source,
                index_source=index_source if ratio else None,
                candidate_source=candidate if reselects and kv_source == candidate else None,
                engram=engram_layers.index(index) if index in engram_layers else None,
            )
        )
    return tuple(layers)
