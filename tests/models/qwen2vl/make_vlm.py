"""Makes a tiny random checkpoint of a model that sees, with a byte-level tokenizer: python make_vlm.py KIND FOLDER

KIND is qwen2vl, qwen25vl or llava. Then `optimum-cli export openvino -m FOLDER OUT` makes the IR. Wants torch and
transformers 4.57.6.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<image>", "<unk>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n{% if m['content'] is string %}{{m['content']}}{% else %}"
    "{% for c in m['content'] %}{% if c['type']=='image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{c['text']}}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
PATCHES = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
PIXELS = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}


def vocabulary():
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return {token: number for number, token in enumerate(tokens)}


def qwen_tokenizer():
    with tempfile.TemporaryDirectory() as folder:
        vocab, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocab.write_text(json.dumps(vocabulary()))
        merges.write_text("#version: 0.2\n")
        return tf.Qwen2TokenizerFast(
            vocab_file=str(vocab), merges_file=str(merges), additional_special_tokens=SPECIAL[1:], **ENDS
        )


def llava_tokenizer():
    made = Tokenizer(models.BPE(vocab=vocabulary(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<|endoftext|>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[1:9],
        **ENDS,
    )


def qwen(kind, tokenizer, ids):
    text = {
        **SIZE,
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "bos_token_id": 0,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>"}
    names |= {"vision_end": "<|vision_end|>", "vision": "<|vision_pad|>"}
    marks = {f"{name}_token_id": ids[token] for name, token in names.items()}
    vision = {"depth": 2, "hidden_size": 64, "num_heads": 4, **PATCHES}
    if kind == "qwen2vl":
        vision |= {"embed_dim": 64, "mlp_ratio": 2}
        config = tf.Qwen2VLConfig(text_config=text, vision_config=vision, **text, **marks)
        model, processor = tf.Qwen2VLForConditionalGeneration(config), tf.Qwen2VLProcessor
    else:
        vision |= {"intermediate_size": 128, "out_hidden_size": 64, "tokens_per_second": 2}
        vision |= {"window_size": 112, "fullatt_block_indexes": [1]}
        config = tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **text, **marks)
        model, processor = tf.Qwen2_5_VLForConditionalGeneration(config), tf.Qwen2_5_VLProcessor
    images = tf.Qwen2VLImageProcessor(patch_size=14, temporal_patch_size=2, merge_size=2, **PIXELS)
    videos = tf.Qwen2VLVideoProcessor(**PIXELS)
    return model, processor(image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=TEMPLATE)


def llava(tokenizer, ids):
    vision = tf.CLIPVisionConfig(**SIZE, num_hidden_layers=3, image_size=56, patch_size=14, projection_dim=64)
    text = tf.LlamaConfig(
        **SIZE,
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=0,
    )
    config = tf.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=ids["<image>"],
        image_token_id=ids["<image>"],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        pad_token_id=0,
    )
    images = tf.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    return tf.LlavaForConditionalGeneration(config), tf.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def main(kind, out):
    torch.manual_seed(0)
    tokenizer = llava_tokenizer() if kind == "llava" else qwen_tokenizer()
    tokenizer.chat_template = TEMPLATE
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    model, processor = llava(tokenizer, ids) if kind == "llava" else qwen(kind, tokenizer, ids)
    generation = model.eval().float().generation_config
    generation.eos_token_id, generation.pad_token_id, generation.bos_token_id = ids["<|im_end|>"], 0, 0
    for made in (model, tokenizer, processor):
        made.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:3])
