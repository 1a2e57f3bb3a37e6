#!/bin/bash
# Whole command lines of the real binary: training, kill -9 and resume, predictions, bad input, a full disk.
# usage: test_cli.sh path/to/convoy
set -u
convoy=$(realpath "$1")
golden=$(realpath "$(dirname "$0")/../golden/segmentron/cityscapes_fast_scnn.a.json")
weights=$(realpath "$(dirname "$0")/../golden/weights")
bench=$(realpath "$(dirname "$0")/../../bench")
work=$(mktemp -d)
trap 'umount "$work/small" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive
checks=0 failures=0

fail() { failures=$((failures + 1)); echo "FAILED: $*"; }
check() { # check WHAT COMMAND...: the command succeeds
  local what=$1; shift
  checks=$((checks + 1))
  if "$@" > check.log 2>&1; then echo "ok: $what"; else fail "$what"; tail -5 check.log; fi
}
refused() { # refused WHAT WORD COMMAND...: exit code 1 within 10 s, stderr says "error:" and the word
  local what=$1 word=$2; shift 2
  checks=$((checks + 1))
  timeout 10 "$@" > out.log 2> err.log
  local code=$?
  if [ $code = 1 ] && grep -q "^error: " err.log && grep -qF -- "$word" err.log; then echo "ok: $what"
  else fail "$what: exit code $code, wanted 1 and '$word'"; tail -3 err.log; fi
}

cat > recipe.yaml <<'YAML'
DATASET: {NAME: cityscape, ROOT: data, WORKERS: 1}
TRAIN: {GLOBAL_BATCH: 2, CROP_SIZE: [64, 96], BASE_SIZE: 64, CHECKPOINT_ITERS: 2}
SOLVER: {LR: 0.02, AUX: True}
MODEL: {MODEL_NAME: FastSCNN}
YAML
train="$convoy train --config-file recipe.yaml --threads 1 --log-iter 1"
losses() { sed -E 's/.*"loss":([^,]*),.*"step":([0-9]+).*/\2 \1/' "$1/metrics.jsonl"; }

check "synth" $convoy synth data --images 10 --size 70x130 --seed 5
check "version" sh -c "$convoy --version --json | grep -q '\"version\"'"
for command in train eval predict plan doctor synth report verify bench weights; do
  check "$command --help" sh -c "$convoy $command --help | grep -q -- --help"
done
check "doctor, its verdict last" sh -c "$convoy doctor --config-file recipe.yaml | tail -1 | grep -qE 'no faults|0 errors, [1-9][0-9]* warning'"
check "doctor --quick --json" sh -c "$convoy doctor --config-file recipe.yaml --quick --json | grep -q looked_at"
check "plan" sh -c "$convoy plan --config-file recipe.yaml --json | grep -q predicted_peak_bytes"
check "plan --dump-plan --trace-step" sh -c "$convoy plan --config-file recipe.yaml --dump-plan --trace-step | grep -q 'upsample_softmax_ce'"

# An undisturbed run against one that is killed at some instant and resumed.
check "train" $train --run-dir whole --max-iters 30 --skip-val
$train --run-dir killed --max-iters 30 --skip-val > /dev/null 2>&1 &
child=$!
for _ in $(seq 300); do [ -d killed/checkpoints/step-00000006 ] && break; sleep 0.1; done
kill -9 $child
wait $child 2>/dev/null
[ -d killed/checkpoints/step-00000030 ] && echo "note: the run had ended before it was killed"
check "resume after kill -9" $train --run-dir killed --max-iters 30 --skip-val --resume auto
check "it left metrics" test -s whole/metrics.jsonl -a -s killed/metrics.jsonl
check "its losses equal those of the undisturbed run" diff <(losses whole) <(losses killed)
check "its weights too" cmp whole/checkpoints/step-00000030/tensors.safetensors killed/checkpoints/step-00000030/tensors.safetensors
cp -r killed again
check "resume with the run's own recipe" sh -c "$convoy train --config-file again/config.yaml --run-dir again --threads 1 --skip-val --resume auto > again.log 2>&1 && ! grep 'changed since' again.log"
check "resume with another crop" sh -c "$convoy train --config-file again/config.yaml --run-dir again --threads 1 --skip-val --resume auto --max-iters 31 TRAIN.CROP_SIZE '(32, 64)' 2>&1 | grep 'changed since.*CROP_SIZE'"

# A signal, a time budget: exit code 75 and resumable.
checks=$((checks + 1))
$train --run-dir signalled --max-iters 1000000 --skip-val > /dev/null 2>&1 &
child=$!
for _ in $(seq 300); do [ -s signalled/metrics.jsonl ] && break; sleep 0.1; done
kill -TERM $child
wait $child
code=$?
[ $code = 75 ] && echo "ok: SIGTERM ends with 75" || fail "SIGTERM: exit code $code"
check "the time budget ends with 75" sh -c "$train --run-dir timed --max-iters 1000000 --skip-val --max-seconds 1; test \$? = 75"
check "and leaves a report" grep -q "<svg" timed/report.html
check "test mode" $train --run-dir tested --test-mode --profile trace.json
check "its profile" grep -q traceEvents trace.json
check "its report" grep -q "<svg" tested/report.html
check "report" $convoy report tested

# Prediction and scores.
mkdir -p mixed && cp data/leftImg8bit/val/*/*.png mixed/ && echo "no image" > mixed/notes.txt
mkdir -p mixed/below && cp "$(ls mixed/*.png | head -1)" mixed/below/ && cp "$(ls mixed/*.png | head -1)" "$(ls mixed/*.png | head -1).jpg"
refused "a folder with a file that is no image" "1 of" $convoy predict --run-dir tested --input-img mixed --output-dir predicted
check "it was named" grep -q "skipped: mixed/notes.txt" err.log
refused "a bad file is not passed over" "notes.txt" $convoy predict --run-dir tested --input-img mixed --output-dir strict --on-bad-sample fail
rm mixed/notes.txt
check "predict a folder" sh -c "$convoy predict --run-dir tested --input-img mixed --recursive --output-dir predicted --json > predicted.json"
check "its pictures" sh -c "ls predicted/*_index.png predicted/*_palette.png predicted/*_overlay.png predicted/below/*_index.png"
check "one for each image" sh -c "test \$(find predicted -name '*_index.png' | wc -l) = \$(find mixed -type f | wc -l)"
check "some kinds of pictures" sh -c "$convoy predict --run-dir tested --input-img mixed --output-dir some --as overlay,index --alpha 0.2 && ls some/*_index.png && ! ls some/*_palette.png"
check "values of the data set's own label files" sh -c "$convoy predict --run-dir tested --input-img mixed --output-dir own --as index --ids dataset && ! cmp -s \$(ls own/*_index.png | head -1) \$(ls some/*_index.png | head -1)"
check "predict into VISUAL.OUTPUT_DIR" sh -c "$convoy predict --run-dir tested --input-img mixed VISUAL.OUTPUT_DIR visual && ls visual/*_index.png"
echo "no image" > mixed/notes.txt
check "eval --json" sh -c "$convoy eval --run-dir tested --json | grep -q miou_present"
check "eval with scales, mirrored, in tiles" sh -c "$convoy eval --run-dir tested --split train --confusion --json TEST.SCALES '[0.5, 1]' TEST.FLIP True TEST.CROP_SIZE '(64, 64)' > scores.json && grep -q 'scales 0.5, 1, mirrored' scores.json && grep -q confusion scores.json"
check "eval on two ranks" sh -c "$convoy eval --run-dir tested --split train --confusion --json --ranks 2 TEST.SCALES '[0.5, 1]' TEST.FLIP True TEST.CROP_SIZE '(64, 64)' | diff - scores.json"
check "eval --save-predictions" sh -c "$convoy eval --run-dir tested --save-predictions scored --as palette | grep -q 'images/s' && test \$(find scored -name '*_palette.png' | wc -l) = \$(ls data/leftImg8bit/val/*/*.png | wc -l)"
for scales in '[0]' '[1, -2]' '[.nan]' '[]' '[.inf]'; do
  refused "scales $scales" "TEST.SCALES" $convoy eval --run-dir tested TEST.SCALES "$scales"
done
refused "a scale beyond all memory" "TEST.SCALES" $convoy eval --run-dir tested TEST.SCALES '[1000000]'
refused "a crop below the network's least size" "TEST.CROP_SIZE" $convoy eval --run-dir tested TEST.CROP_SIZE '(8, 64)'
refused "an overlap of whole tiles" "TEST.TILE_OVERLAP" $convoy eval --run-dir tested TEST.TILE_OVERLAP 1
refused "a kind of picture that is none" "heatmap" $convoy predict --run-dir tested --input-img mixed --as heatmap
refused "blanks between kinds of pictures" "index,palette,overlay" $convoy predict --run-dir tested --input-img mixed --as index palette overlay
check "the help's kinds of pictures" sh -c "$convoy predict --help | grep -q -- '--as KIND.*index,palette,overlay'"
refused "alpha beyond 1" "alpha" $convoy predict --run-dir tested --input-img mixed --alpha nan
refused "kinds without pictures" "--save-predictions" $convoy eval --run-dir tested --as index
refused "a confusion matrix without JSON" "--json" $convoy eval --run-dir tested --confusion


# Weight files.
check "weights list --json" sh -c "$convoy weights list '$weights/mixed.pth' --json | grep -q '\"name\":\"nested/od/w\",\"dtype\":\"float32\",\"shape\":\[2,3,1,2\]'"
check "weights list of a run" sh -c "$convoy weights list tested | grep -q 'checkpoint'"
check "weights diff of equal files" $convoy weights diff "$weights/mixed.pth" "$weights/mixed_legacy.pth"
checks=$((checks + 1))
$convoy weights diff "$weights/mixed.pth" "$weights/objects.pth" > diff.log
[ $? = 1 ] && grep -q "only in" diff.log && echo "ok: weights diff of others" || fail "weights diff of others"
check "weights convert" $convoy weights convert "$weights/mixed.pth" mixed.safetensors --select tensors
check "and back" $convoy weights convert mixed.safetensors mixed.pth --add-prefix x.
check "to the same values" $convoy weights diff "$weights/mixed.pth" mixed.pth --select-a tensors --strip-b x.
says() { # says WHAT WORD COMMAND...: the command succeeds, and its output has the word
  local what=$1 word=$2; shift 2
  checks=$((checks + 1))
  "$@" > out.log 2>&1 && grep -qF -- "$word" out.log && echo "ok: $what" || { fail "$what: no '$word'"; tail -5 out.log; }
}
says "convert says what it leaves out" "10 other values" $convoy weights convert "$weights/mixed.pth" flat.safetensors
says "and how it names what was nested" '"tensors/f16"' $convoy weights convert "$weights/mixed.pth" flat.pth
says "convert of a run points to export" "weights export whole whole.pth" $convoy weights convert whole whole.pth
says "and says which checkpoint it took" "whole: taken from whole/checkpoints/step-00000030" $convoy weights convert whole whole.pth
says "export of a run without a best checkpoint" "step-00000030: step 30, the newest checkpoint" $convoy weights export whole whole.pth
says "export of a run with one" ", the run's best checkpoint" $convoy weights export tested tested.pth
check "weights export" $convoy weights export tested model.safetensors
check "weights export to .pth" $convoy weights export tested model.pth
check "eval of an exported file" sh -c "$convoy eval --checkpoint model.safetensors --json | grep -q miou_present"
check "eval of a .pth" sh -c "$convoy eval --config-file recipe.yaml TEST.TEST_MODEL_PATH model.pth --ranks 2 --json | grep -q miou_present"
check "predict by a .pth" $convoy predict --config-file recipe.yaml --checkpoint model.pth --input-img "$(ls mixed/*.png | head -1)" --output-dir by-pth
check "train from a .pth" sh -c "$train --run-dir tuned --max-iters 1 --skip-val TRAIN.PRETRAINED_MODEL_PATH model.pth | grep -q 'tensors matched'"
refused "a .pth without recipe" "--config-file" $convoy eval --checkpoint model.pth
refused "a .pth of something else" "too few weights" $train --run-dir bad TRAIN.PRETRAINED_MODEL_PATH "$weights/mixed.pth"
refused "a weight file that is none" "neither" $convoy weights list recipe.yaml
refused "an ending that says nothing" ".safetensors" $convoy weights convert "$weights/mixed.pth" mixed.bin
refused "weights nowhere" "absent.pth" $convoy weights list absent.pth
printf 'cos\nsystem\n(S"touch was-run"\ntR.' > attack.pth
refused "a pickle that runs a program" "os.system" $convoy weights list attack.pth
check "which was not run" test ! -e was-run

check "bench step" $convoy bench step --net FastSCNN --size 64x96 --batch 2 --threads 1 --warmup 0 --pairs 1
check "plan --ranks" sh -c "$convoy plan --config-file recipe.yaml --ranks 2 --dump-plan | grep -q 'sync_bn_stats'"
check "verify --exact-ranks" timeout 120 $convoy verify --exact-ranks --ranks 3 --net FastSCNN --size 32x64 --batch 4 --steps 2
check "bench ranks" timeout 120 $convoy bench ranks --ranks 2 --net FastSCNN --size 64x96 --batch 4 --warmup 0 --rounds 1 --steps 1 --bucket-mb 0.5 --json ranks.json
has_keys() { python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); [r[k] for k in sys.argv[2:]]' "$@"; }
check "its figures" has_keys ranks.json together alone side_by_side ratio_to_alone ratio_to_side_by_side statistics_and_counts gradients
check "bench ranks with an image each" timeout 120 $convoy bench ranks --ranks 2 --net FastSCNN --size 64x96 --batch 2 --warmup 0 --rounds 1 --steps 1
check "bench op" $convoy bench op --filter '^(relu|activation|add) ' --threads 1 --repeats 2 --max-seconds 2 --json op.json
row=$(python3 -c "import json; print(json.load(open('op.json'))['rows'][-1]['command'])")
check "bench op: a row's own command measures it alone" sh -c "$convoy ${row#convoy } --json row.json &&
  python3 -c \"import json; a, b = (json.load(open(f))['rows'] for f in ('op.json', 'row.json')); assert len(b) == 1 and b[0]['id'] == a[-1]['id']\""
check "bench op on the emulated device agrees with the CPU" sh -c "$convoy bench op --device emulated --filter '^(add|bn_stats|resize_bilinear|softmax_cross) ?' --json emulated.json &&
  python3 -c \"import json; d = json.load(open('emulated.json')); assert len(d['rows']) > 3 and not d['times_are_meaningful']; assert all(r['largest_error'] < 1e-4 and 'share_of_roofline' not in r['ours'] for r in d['rows'] if r['largest_error'] is not None)\""
check "bench op: a network's shapes" sh -c "$convoy bench op --from-net FastSCNN --size 64x96 --batch 2 --list | grep -q ' times  conv2d '"
refused "bench op: a filter that finds nothing" "operators here: " $convoy bench op --filter nothing-like-this
refused "bench op: half a filter" "no regular expression" $convoy bench op --filter '('
refused "bench op: no such library" "nowhere.so" $convoy bench op --user-kernel ./nowhere.so:f --for add
refused "bench op: a kernel for nothing" "--for" $convoy bench op --user-kernel ./nowhere.so:f
if command -v cc > /dev/null; then
  check "bench op: a user's kernel compiles" cc -O2 -I "$bench/.." -shared -fPIC -o add.so "$bench/user_kernel/add.c"
  check "bench op: a user's kernel beside ours" sh -c "$convoy bench op --user-kernel ./add.so:my_add --for add --repeats 2 --max-seconds 2 --json user.json &&
    python3 -c \"import json; r = json.load(open('user.json'))['rows']; assert r and all(x['user_error'] == 0 and x['user']['seconds'] for x in r)\""
  check "bench op: a user's kernel that declines" sh -c "$convoy bench op --user-kernel add.so:my_add --for scale --repeats 1 | grep -q 'does not take these arguments'"
  sed 's/ + b\[/ - b[/' "$bench/user_kernel/add.c" > wrong.c
  check "bench op: a wrong kernel compiles" cc -O2 -I "$bench/.." -shared -fPIC -o wrong.so wrong.c
  refused "bench op: a user's kernel that is wrong" "1 results are wrong" $convoy bench op --user-kernel ./wrong.so:my_add --for add --repeats 1 --max-seconds 2
  refused "bench op: no such function" "no function 'your_add'" $convoy bench op --user-kernel add.so:your_add --for add
fi
check "bench comm" timeout 120 $convoy bench comm --ranks 2 --net FastSCNN --repeats 1 --json comm.json
check "its figures" has_keys comm.json all_reduce gradient_sum best_bucket_bytes
check "verify" sh -c "$convoy verify --threads 1 '$golden' | tail -1 | grep -q ' 0 failed'"

# Bad input: named within 10 s.
refused "unknown command" "'train'" $convoy trian
refused "a command that is like none" "'xyz'. Commands:" $convoy xyz
refused "unknown part of a command" "'step'" $convoy bench stpe
refused "a key without its group" "TRAIN.CROP_SIZE and TEST.CROP_SIZE" $train --run-dir bad CROP_SIZE 64
refused "a network that is like none" "'ENet'. Networks:" $convoy plan --export-torch enet
refused "a run's own recipe" "--config-file whole/config.yaml --resume auto" $convoy train --run-dir whole --resume auto
refused "unknown option" "--log-iter" $train --log-itre 3
refused "a misspelt option that was needed" "--run-dir" $convoy eval --run-dri tested
refused "unknown key" "SOLVER.LR" $train --run-dir bad SOLVER.LRR 1
refused "key without value" "SOLVER.LR" $train --run-dir bad SOLVER.LR
refused "no recipe" "nowhere.yaml" $convoy train --config-file nowhere.yaml
refused "unknown network" "FastSCNN" $train --run-dir bad MODEL.MODEL_NAME FastSCN
refused "a setting not built yet" "MODEL.BN_TYPE GN" $train --run-dir bad MODEL.BN_TYPE GN
refused "an optimizer that is like another" "the nearest is 'adamw'" $train --run-dir bad SOLVER.OPTIMIZER adanw
refused "figures into a device" "no regular file" $convoy bench comm --ranks 2 --net FastSCNN --repeats 1 --json /dev/null
check "the device is still there" test -c /dev/null
refused "files for --exact-ranks" "takes no files" $convoy verify --exact-ranks $golden
refused "nothing to verify" "reference files" $convoy verify
refused "predictions that exchange" "--eval" $convoy plan --config-file recipe.yaml --ranks 2 --eval
refused "no ranks" "--ranks" $train --run-dir bad --ranks 0
refused "a key that several ranks do not know" "SOLVER.LR" $train --run-dir bad --ranks 2 SOLVER.LRR 1
refused "an earlier run in the way of several ranks" "rank 0 on" $train --run-dir whole --ranks 2
refused "exchanges of a single rank" "--ranks 2" $convoy bench ranks --net FastSCNN --size 64x96
refused "a batch divided unevenly" "3" $convoy bench ranks --ranks 2 --net FastSCNN --size 64x96 --batch 3
refused "buckets of nothing" "--bucket-mb" $train --run-dir bad --bucket-mb 0
refused "buckets of no number" "--bucket-mb" $train --run-dir bad --bucket-mb nan
refused "a time of no number" "--max-seconds" $train --run-dir bad --max-seconds nan
refused "ranks without their launcher" "unset" env CONVOY_RANK=0 CONVOY_RANKS=2 CONVOY_JOB=gone $train --run-dir bad
refused "processes that MPI does not know" "MPI" env OMPI_COMM_WORLD_SIZE=3 $train --run-dir bad
refused "a device not built in" "cuda" $train --run-dir bad --device cuda
refused "an earlier run in the way" "--resume auto" $train --run-dir whole
refused "no such checkpoint" "mistyped" $train --run-dir bad --resume mistyped
refused "prediction without image" "notes.txt" $convoy predict --run-dir tested --input-img mixed/notes.txt
refused "no such image" "absent.png" $convoy predict --run-dir tested --input-img absent.png
refused "report of nothing" "absent" $convoy report absent
refused "classes against the data set" "NUM_CLASSES" $train --run-dir bad DATASET.NUM_CLASSES 5
refused "a size beyond bounds" "TRAIN.BASE_SIZE" $train --run-dir bad TRAIN.BASE_SIZE 1000000000
refused "a plan beyond bounds" "1000000x1000000" $convoy plan --config-file recipe.yaml --size 1000000x1000000
refused "a plan that does not fit" "next size" $convoy plan --config-file recipe.yaml --size 1x1
refused "the sizes around one that does not fit" "(379, 480), the nearest smaller one (354, 480); multiples of 32 always fit, as (352, 480)" $convoy plan --config-file recipe.yaml --size 360x480
check "plan --eval pads" sh -c "$convoy plan --config-file recipe.yaml --eval --size 360x480 | grep -q '379x480 (images of 360x480, padded)'"
refused "a batch of none" "--batch" $convoy plan --config-file recipe.yaml --batch 0
refused "a loss or weights that blow up" "step" $train --run-dir blown --max-iters 3 --skip-val SOLVER.LR 1e38
mkfifo pipe
refused "a pipe in the place of a profile" "regular file" $train --run-dir bad --profile pipe
check "which stays" test -p pipe
refused "a profile nowhere" "nowhere/x.json" $train --run-dir bad --profile nowhere/x.json
echo 'TRAIN: {CROP_SIZE: &a [*a]}' > endless.yaml
refused "an alias in itself" "endless.yaml:1" $convoy plan --config-file endless.yaml
mkdir links && ln -s loop.png links/loop.png && cp mixed/*.png links/
check "predict passes over a link to itself" sh -c "$convoy predict --run-dir tested --input-img links --output-dir linked 2>&1 | grep -q loop.png; ls linked/*_index.png"
mkdir twice && cp "$(ls mixed/*.png | head -1)" twice/a.png && cp twice/a.png twice/a_index.png && ln -s twice twice-by-link
cp twice/a_index.png kept.png
refused "predictions in the place of their inputs" "twice/a_index.png" $convoy predict --run-dir tested --input-img twice --output-dir twice-by-link
check "which stay, with nothing beside them" sh -c "cmp kept.png twice/a_index.png && test \$(ls twice | wc -l) = 2"
mkdir names && cp kept.png names/a.png && cp kept.png "names/$(printf 'n%.0s' $(seq 250)).png" && cp kept.png "names/$(printf 'z\377').png"
refused "a prediction whose name is too long" "1 of 3" $convoy predict --run-dir tested --input-img names --output-dir named --json
check "the others are there" sh -c "test \$(ls named/*_index.png | wc -l) = 2"
check "and in the JSON, whatever their bytes" python3 -c "import json; assert len(json.load(open('out.log', encoding='utf-8'))['written']) == 2"
refused "a pipe in the place of reference figures" "pipe: is not a regular file" $convoy verify pipe
refused "an export without a name" "file name is empty" $convoy plan --export-torch ''
refused "values under another ending" ".safetensors" $convoy plan --export-torch FastSCNN --export-values v.pth
check "which is not written" test ! -e v.pth
mkdir no-run
refused "report without a run" "no-run" $convoy report no-run
refused "a full standard output" "standard output" sh -c "$convoy plan --config-file recipe.yaml > /dev/full"
refused "a full standard output of ranks" "standard output" sh -c "$convoy eval --ranks 2 --run-dir tested > /dev/full"
check "ranks whose log nobody reads" sh -c "$train --run-dir unread --ranks 2 --max-iters 4 --skip-val | true; test -f unread/report.html"
check "closed standard streams" sh -c "$convoy plan --config-file nowhere.yaml >&- 2>&-; test \$? = 1"
refused "a file size limit" "limited" bash -c "ulimit -f 8; $train --run-dir limited --max-iters 5 --skip-val"
refused "synth size" "HEIGHTxWIDTH" $convoy synth other --size 12by14

cp -r whole broken
truncate -s -100 broken/checkpoints/step-00000030/tensors.safetensors
refused "unreadable checkpoint" "tensors.safetensors" $convoy eval --checkpoint broken/checkpoints/step-00000030
for c in broken/checkpoints/step-*; do truncate -s -1 $c/tensors.safetensors; done
refused "all checkpoints unreadable" "damaged" $train --run-dir broken --resume auto --max-iters 30

damage() { # damage NAME: a copy of the data set to be spoilt
  rm -rf "$1" && cp -r data "$1"
  image=$(ls "$1"/leftImg8bit/train/*/*.png | head -1)
  label=$(ls "$1"/gtFine/train/*/*labelIds.png | head -1)
}
damage outside; python3 - "$label" <<'PY'
import struct, sys, zlib
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
height, width = 70, 130
rows = b"".join(b"\0" + (bytes([7] * width) if y != 3 else bytes([7] * 5 + [200] + [7] * (width - 6))) for y in range(height))
open(sys.argv[1], "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
                              + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PY
refused "label outside the range" "label value 200 at pixel (x 5, y 3)" $train --run-dir bad1 DATASET.ROOT outside
refused "which file" "$(basename "$label")" $train --run-dir bad1 DATASET.ROOT outside
damage short; truncate -s -200 "$image"
refused "truncated image" "$(basename "$image")" $train --run-dir bad2 DATASET.ROOT short
check "which can be skipped" $train --run-dir skipping --max-iters 4 --skip-val --on-bad-sample skip DATASET.ROOT short
damage sizes; $convoy synth half --images 2 --size 35x65 > /dev/null; cp "$(ls half/gtFine/train/*/*labelIds.png | head -1)" "$label"
refused "mask of another size" "$(basename "$label")" $train --run-dir bad3 DATASET.ROOT sizes
damage missing; rm "$label"
refused "missing mask" "$(basename "$label")" $train --run-dir bad4 DATASET.ROOT missing
mkdir -p folder/images/train folder/images/val folder/masks/train folder/masks/val
for split in train val; do cp data/gtFine/train/*/*labelIds.png folder/masks/$split/; done
for split in train val; do for mask in folder/masks/$split/*.png; do
  printf '\377\330\377\340\0\20JFIF\0\1\1\0\0\1\0\1\0\0' > folder/images/$split/$(basename $mask .png).jpg; done; done
refused "truncated JPEG" ".jpg" $train --run-dir bad5 DATASET.NAME folder DATASET.ROOT folder DATASET.NUM_CLASSES 34

if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=12m tmpfs small 2>/dev/null; then
  refused "a disk that fills up" "small/run/checkpoints" $train --run-dir small/run --max-iters 100 --skip-val
else
  echo "skipped: a disk that fills up (needs root and mount)"
fi

echo "$((checks - failures)) passed, $failures failed"
[ $failures = 0 ]
