#!/usr/bin/env bash
# The whole way on a data set that the project draws itself: images and boxes -> TFRecords ->
# training -> SavedModel -> predictions -> submission CSV -> a picture to look at.
# Started again, it goes on where it was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
export STORAGE=${STORAGE:-output/demo} TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
python=${PYTHON:-python}
images=$STORAGE/images

step() { printf '\n== %s\n' "$*"; }

step "1/6 draw 500 images with their boxes: $images"
[ -e "$images/val_boxes.csv" ] || "$python" scripts/make_sample_set.py --output "$images"

step "2/6 write TFRecords: $STORAGE/converted/sample"
for split in train val; do
    "$python" scripts/make_tfrecords.py --format open_images --include_unlabeled \
        --annotations "$images/${split}_boxes.csv" --images "$images/$split" \
        --classes "$images/classes.csv" --split "$split" --output "$STORAGE/converted/sample"
done

step "3/6 train and evaluate"
scripts/train_on_dataset.sh sample quickstart

step "4/6 export the SavedModel"
scripts/export_saved_model.sh sample quickstart best --overwrite

step "5/6 predict the validation images"
model=$(echo "$STORAGE"/final/quickstart-sample-*)
predictions=$STORAGE/predictions/quickstart-sample.parquet
mkdir -p "$STORAGE/predictions"
"$python" scripts/inference/inference.py "$predictions" "$model" --images "$images/val" --overwrite

step "6/6 write the submission"
submission=$STORAGE/predictions/quickstart-sample.csv
"$python" scripts/inference/gen_sub.py "$predictions" --out "$submission" -f

step "Done"
grep -h "AP50: " "$STORAGE/logs/quickstart-sample.log" | tail -n 1
echo "SavedModel:  $model"
echo "Submission:  $submission"
echo "Detections:  $STORAGE/saved/quickstart-sample/detections.png"
