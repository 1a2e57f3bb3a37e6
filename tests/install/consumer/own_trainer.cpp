// A training program of one's own, without Convoy's command line.
#include <cstdio>

#include "apps/trainer.h"
#include "engine/error.h"

int main() {
  try {
    convoy::Trainer trainer(convoy::load_config("no/such/recipe.yaml"), {.run_directory = "runs/own"});
    trainer.run();
  } catch (const convoy::Error& error) {
    std::printf("%s\n", error.what());
  }
}
