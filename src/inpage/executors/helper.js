/** A thread that helps with programs: an instance of the kernels over the memory it is sent. */

onmessage = ({ data: { module, memory, control, stack } }) => {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  exports.__stack_pointer.value = stack;
  exports.help(control);
  close();
};
