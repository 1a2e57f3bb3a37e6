// The readers of data sets, one per layout, and what they share. A reader lists files and names classes; decoding,
// checks and hashes are SegmentationDataset's.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace convoy {

/// Every reader: `config.root` is the data set's folder. Throws Error where folder or split do not exist, and for
/// MissingLabels::error where a listed file does not.
using DatasetReader = DatasetParts (*)(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/{leftImg8bit,gtFine}/SPLIT/CITY/*_{leftImg8bit,gtFine_labelIds}.png; 19 classes. Names beginning with "." are
/// skipped.
DatasetParts read_cityscapes(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// Images and masks of the same base name in two folders: config.image_dir and mask_dir with {split} replaced, else the
/// first that exists of images/SPLIT + masks/SPLIT, SPLIT + SPLITannot, SPLIT/images + SPLIT/masks. Classes:
/// num_classes and, one per line, ROOT/classes.txt (name, or name and red green blue).
DatasetParts read_folder(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/{SPLIT,SPLITannot} with equal base names; 11 classes, 11 = ignore.
DatasetParts read_camvid(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// PASCAL VOC 2012: ROOT/{JPEGImages,SegmentationClass}, names in ROOT/ImageSets/Segmentation/SPLIT.txt; 21 classes.
DatasetParts read_pascal_voc(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// VOC with the additional annotations of SBD: ROOT/{img,cls}, names in ROOT/SPLIT.txt; the split train is trainval.txt
/// where that exists, as in the reference. A label is cls/NAME.mat (GTcls.Segmentation) or, where there is none,
/// cls/NAME.png.
DatasetParts read_pascal_aug(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/{images,annotations}/{training,validation}: value 0 is ignored, 1..150 are the classes.
DatasetParts read_ade20k(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/{SBUTrain4KRecoveredSmall,SBU-Test}/{ShadowImages,ShadowMasks}: value 0 is background, all else shadow.
DatasetParts read_sbu(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/TrainVal_images/SPLIT_images, ROOT/TrainVal_parsing_annotations/SPLIT_segmentations, names in
/// TrainVal_images/SPLIT_id.txt; ROOT/Testing_images/testing_images and test_id.txt. 20 classes.
DatasetParts read_lip(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// ROOT/{SPLIT2017,annotations/instances_SPLIT2017.json}: the 20 categories that VOC has, drawn from their outlines,
/// and background; images with more than 1000 labelled pixels. Their ids are kept in ROOT/SPLIT2017_ids.txt, since to
/// find them takes minutes, until the annotations change.
DatasetParts read_coco(const DatasetConfig& config, const std::string& split, MissingLabels missing);

/// The 21 classes of PASCAL VOC.
ClassTable voc_classes();
/// 0..20, 255 is ignored.
LabelTable voc_labels();

// --- shared ---

/// config.root absolute and free of "..", which must be a folder; `name` for the message.
std::filesystem::path dataset_root(const DatasetConfig& config, const std::string& name);

/// Throws Error naming the splits there are, unless `split` is one of them.
void require_split(const std::string& name, const std::string& split, const std::vector<std::string>& known);

/// Entries of a folder by name, those that begin with "." left out.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& folder);

/// Base name -> file, for files with one of the given endings (lower case; any case matches). Two files of one base
/// name are an Error.
std::map<std::string, std::filesystem::path> list_files(const std::filesystem::path& folder,
                                                        const std::vector<std::string>& endings);

/// The endings of image files.
const std::vector<std::string>& image_endings();

/// Pairs every image of one folder with the label file of the same base name in the other. `labels` empty: no labels.
/// Label files without an image are added to `unused`.
std::vector<SamplePaths> pair_by_name(const std::filesystem::path& root, const std::filesystem::path& images,
                                      const std::filesystem::path& labels, std::vector<std::string>& unused);

/// One line of a list of names.
struct ListedName {
  std::string name;
  int64_t line = 0;
};

/// The names in a text file, one a line: blanks around them, empty lines and Windows line ends do not count. Throws
/// Error naming file and line for a name that is there twice, and for a list without names.
std::vector<ListedName> read_name_list(const std::filesystem::path& path);

/// Samples of a list: images/NAME.jpg (or .jpeg, .png) with labels/NAME.png; `labels` empty: no labels. For
/// MissingLabels::error a name without image is an Error naming the list's line.
std::vector<SamplePaths> pair_by_list(const std::filesystem::path& root, const std::filesystem::path& list,
                                      const std::filesystem::path& images, const std::filesystem::path& labels,
                                      MissingLabels missing);

/// For MissingLabels::error: an Error naming the first image or label file that does not exist, or that `samples` have
/// no labels at all.
void require_files(const std::vector<SamplePaths>& samples, const std::string& split, MissingLabels missing);

/// Value = class, 0..num_classes-1, and perhaps one value that is ignored.
LabelTable identity_labels(int64_t num_classes, std::optional<int64_t> ignore_label);

/// Makes `value` ignored, whatever it was.
void ignore_value(LabelTable& labels, int64_t value);

}  // namespace convoy
