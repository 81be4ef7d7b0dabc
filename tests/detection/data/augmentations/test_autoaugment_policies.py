"""The tables of AutoAugment against the predecessor's facts, word by word, and every amount."""

import pytest

from tpudet.detection.data.augmentations.autoaugment import POLICIES, PolicyStep, operation_amount
from tpudet.detection.data.augmentations.rand_augment import CHANGES

V0 = """
TranslateX .6 4 + Equalize .8 10 · TranslateY_Only .2 2 + Cutout .8 8 · Sharpness 0 8 + ShearX .4 0
· ShearY 1 2 + TranslateY_Only .6 6 · Rotate .6 10 + Color 1 6
"""
TABLES = {
    "v0": V0,
    "v1": f"""{V0}
· Color 0 0 + ShearX_Only .8 4 · ShearY_Only .8 2 + Flip_Only 0 10
· Equalize .6 10 + TranslateX .2 2
· Color 1 10 + TranslateY_Only .4 6 · Rotate .8 10 + Contrast 0 10 · Cutout .2 2 + Brightness .8 10
· Color 1 6 + Equalize 1 2 · Cutout_Only .4 6 + TranslateY_Only .8 2 · Color .2 8 + Rotate .8 10
· Sharpness .4 4 + TranslateY_Only 0 4 · Sharpness 1 4 + SolarizeAdd .4 4 · Rotate 1 8 +
Sharpness .2 8 · ShearY .6 10 + Equalize_Only .6 8 · ShearX .2 6 + TranslateY_Only .2 10
· SolarizeAdd .6 8 + Brightness .8 10
""",
    "v2": """
Color 0 6, Cutout .6 8, Sharpness .4 8 · Rotate .4 8, Sharpness .4 2, Rotate .8 10
· TranslateY 1 8, AutoContrast .8 2 · AutoContrast .4 6, ShearX .8 8, Brightness 0 10
· SolarizeAdd .2 6, Contrast 0 10, AutoContrast .6 0 · Cutout .2 0, Solarize .8 8, Color 1 4
· TranslateY 0 4, Equalize .6 8, Solarize 0 10 · TranslateY .2 2, ShearY .8 8, Rotate .8 8
· Cutout .8 8, Brightness .8 8, Cutout .2 2 · Color .8 4, TranslateY 1 6, Rotate .6 6
· Rotate .6 10, BBox_Cutout 1 4, Cutout .2 8 · Rotate 0 0, Equalize .6 6, ShearY .6 8
· Brightness .8 8, AutoContrast .4 2, Brightness .2 2
· TranslateY .4 8, Solarize .4 6, SolarizeAdd .2 10 · Contrast 1 10, SolarizeAdd .2 8, Equalize .2 4
""",
    "v3": """
Posterize .8 2 + TranslateX 1 8 · BBox_Cutout .2 10 + Sharpness 1 8 · Rotate .6 8 + Rotate .8 10
· Equalize .8 10 + AutoContrast .2 10 · SolarizeAdd .2 2 + TranslateY .2 8
· Sharpness 0 2 + Color .4 8 · Equalize 1 8 + TranslateY 1 8 · Posterize .6 2 + Rotate 0 10
· AutoContrast .6 0 + Rotate 1 6 · Equalize 0 4 + Cutout .8 10 · Brightness 1 2 + TranslateY 1 6
· Contrast 0 2 + ShearY .8 0 · AutoContrast .8 10 + Contrast .2 10 · Rotate 1 10 + Cutout 1 10
· SolarizeAdd .8 6 + Equalize .8 8
""",
    "test": "TranslateX 1 4 + Equalize 1 10",
}
NAMES = {
    "AutoContrast": "auto_contrast",
    "BBox_Cutout": "box_cutout",
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "SolarizeAdd": "solarize_add",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
}


def step_of(text: str) -> PolicyStep:
    name, probability, level = text.split()
    plain = name.removesuffix("_Only")
    name_here = NAMES.get(plain, plain.lower())
    return PolicyStep(name_here, float(probability), int(level), in_boxes=plain != name)


@pytest.mark.parametrize("policy", POLICIES)
def test_tables_are_the_predecessors(policy):
    expected = [
        tuple(map(step_of, steps.replace("+", ",").split(",")))
        for steps in TABLES[policy].split("·")
    ]
    assert list(POLICIES[policy]) == expected


# Of the image at levels 2 and 10, then in boxes at levels 2 and 10.
AMOUNTS = {
    "auto_contrast": (0, 0, 0, 0),
    "box_cutout": (0.15, 0.75, 0.15, 0.75),
    "brightness": (0.46, 1.9, 0.46, 1.9),
    "color": (0.46, 1.9, 0.46, 1.9),
    "contrast": (0.46, 1.9, 0.46, 1.9),
    "cutout": (20, 100, 10, 50),
    "equalize": (0, 0, 0, 0),
    "flip": (0, 0, 0, 0),
    "identity": (0, 0, 0, 0),
    "posterize": (1, 4, 1, 4),  # 0 bits count as 1
    "rotate": (6, 30, 6, 30),
    "sharpness": (0.46, 1.9, 0.46, 1.9),
    "shear_x": (0.06, 0.3, 0.06, 0.3),
    "shear_y": (0.06, 0.3, 0.06, 0.3),
    "solarize": (51, 256, 51, 256),
    "solarize_add": (22, 110, 22, 110),
    "translate_x": (50, 250, 24, 120),
    "translate_y": (50, 250, 24, 120),
}


@pytest.mark.parametrize("name", CHANGES)
def test_amounts(name):
    amounts = [
        operation_amount(PolicyStep(name, 1.0, level, in_boxes))
        for in_boxes in (False, True)
        for level in (2, 10)
    ]
    assert amounts == pytest.approx(AMOUNTS[name])
