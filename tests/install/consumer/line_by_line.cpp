// Convoy as a library: a graph whose values are asked for line by line, then a training step of it.
#include <cstdio>

#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/session.h"

int main() {
  convoy::Context context;
  convoy::ParamStore parameters;
  parameters.add_parameter("weight", {1, 1, 1, 1});
  parameters.allocate();
  *parameters.value(0) = 2;

  convoy::Graph graph(context, parameters);
  const float pixels[] = {1, 2, 3, -4};
  convoy::Value x = graph.constant(convoy::Tensor::of({1, 1, 2, 2}, pixels));
  convoy::Value y = relu(conv2d(x, graph.parameter("weight"), {}));
  std::printf("mean %g\n", evaluate(global_avg_pool(y)).item());  // runs what this value needs: 3

  convoy::Value loss = dot(y, y);
  graph.differentiate(loss);
  convoy::Session step(graph, {loss});
  step.run({});
  std::printf("loss %g, gradient %g\n", step.fetch(0).item(), *parameters.gradient(0));  // 56, 56
}
