/* CLONES before a function: several versions of it, for the vector instructions of x86-64 processors, one of which is chosen when
   the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define X86 1
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define X86 0
#define CLONES
#endif
