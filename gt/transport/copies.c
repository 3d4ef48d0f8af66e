/* Copies of large arrays by several threads, without the interpreter's lock. The threads are the process's, begin when they are
   first asked for, and sleep between copies. Whoever has time takes the next part, so nobody waits for a thread that has not
   begun. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PART (256 << 10)

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* held for a copy: there is one at a time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static char *target;
static const char *source;
static size_t size;
static atomic_size_t next;
static unsigned long number;             /* of the copy */
static int wanted, active, threads;      /* threads that may still begin with it, that have begun, and that there are */
static pid_t owner;                      /* a forked child has none of its parent's threads */
static atomic_ulong helped;              /* parts that threads have copied */

static size_t parts(void) {
    size_t at, count = 0;
    for (; (at = atomic_fetch_add(&next, PART)) < size; count++) memcpy(target + at, source + at, size - at < PART ? size - at : PART);
    return count;
}

static void *serve(void *unused) {
    unsigned long seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (wanted == 0 || number == seen) pthread_cond_wait(&begun, &lock);
        seen = number;
        wanted--;
        active++;
        pthread_mutex_unlock(&lock);
        size_t count = parts();
        atomic_fetch_add(&helped, count);
        pthread_mutex_lock(&lock);
        if (--active == 0) pthread_cond_signal(&ended);
    }
    return unused;
}

/* Have this many threads; those that the system refuses are missing. */
static void start(int count) {
    if (owner != getpid()) {
        owner = getpid();
        threads = active = wanted = 0;
    }
    for (; threads < count; threads++) {
        pthread_t made;
        if (pthread_create(&made, NULL, serve, NULL) != 0) return;
        pthread_detach(made);
    }
}

static void copy_with(int count) {
    start(count);
    pthread_mutex_lock(&lock);
    atomic_store(&next, 0);
    number++;
    wanted = count < threads ? count : threads;
    if (wanted) pthread_cond_broadcast(&begun);
    pthread_mutex_unlock(&lock);
    parts();
    pthread_mutex_lock(&lock);
    wanted = 0;
    while (active) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}

static PyObject *copy(PyObject *module, PyObject *args) {
    Py_buffer to, from;
    int count;
    if (!PyArg_ParseTuple(args, "w*y*i", &to, &from, &count)) return NULL;
    int same = to.len == from.len;
    if (same) {
        Py_BEGIN_ALLOW_THREADS
        if (pthread_mutex_trylock(&one) == 0) {
            target = to.buf, source = from.buf, size = (size_t)to.len;
            copy_with(count);
            pthread_mutex_unlock(&one);
        } else memcpy(to.buf, from.buf, (size_t)to.len); /* another thread's copy has them */
        Py_END_ALLOW_THREADS
    } else PyErr_Format(PyExc_ValueError, "cannot copy %zd bytes into %zd", from.len, to.len);
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    return same ? Py_NewRef(Py_None) : NULL;
}

static PyObject *parts_helped(PyObject *module, PyObject *unused) { return PyLong_FromUnsignedLong(atomic_load(&helped)); }

/* In a forked child: another thread of its parent may have held a lock. */
static void unlock_all(void) {
    pthread_mutex_init(&one, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&begun, NULL);
    pthread_cond_init(&ended, NULL);
}

static PyMethodDef methods[] = {
    {"copy", copy, METH_VARARGS, "Copy bytes into an array of the same length, with the help of this many threads."},
    {"helped", parts_helped, METH_NOARGS, "The parts of arrays that helping threads have copied so far."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_copies", SOURCE, -1, methods};

PyMODINIT_FUNC PyInit__copies(void) {
    pthread_atfork(NULL, NULL, unlock_all);
    return PyModule_Create(&module);
}
