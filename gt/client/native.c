/* The client's hot path in C: apply.py's steps for the common case, an op of known kind on tensors of this thread's session.
   All other cases are left to the Python function given to `setup`, which is complete. So the rules are in one place, and this
   file is for speed only: GT works the same without it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define MOST 62 /* most operands of an op with gradients that is issued here */

static PyTypeObject *StreamType, *HandleType;
static PyTypeObject *TensorType, *NodeType, *KnownType, *ScopeType, *PlanType, *PortType; /* Python classes, set by `setup` */
static PyObject *zero, *name_due, *name_module, *name_foreach, *nothing, *empty;

/* Offsets of the slots in objects of these classes. */
static Py_ssize_t tensor_handle, tensor_requires_grad, tensor_node, tensor_grad, tensor_hooks, tensor_base, tensor_how, tensor_made;
static const Py_ssize_t *tensor_empty[] = {&tensor_grad, &tensor_hooks, &tensor_base, &tensor_how, &tensor_made};
static Py_ssize_t known_number, known_out, known_outs, known_differentiable, known_pulls, known_view, known_unseen, known_floats;
static Py_ssize_t scope_session, scope_kinds, scope_origin, scope_grad;
static Py_ssize_t plan_keep, plan_keeps_output, plan_pulls, plan_whole, plan_conjugate, plan_ins, plan_main, plan_function, plan_settings;
static Py_ssize_t node_known, node_plan, node_inputs, node_edges, node_output, node_scope, node_order, node_hooks, port_node, port_index;

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* The scope of each thread, in a holder that the thread's dict has under `here`; and the holder of the thread that asked last. */
typedef struct {
    PyObject_HEAD
    PyObject *scope;
} Holder;
static PyTypeObject *HolderType;
static PyObject *here;
static Holder *holder;
static uint64_t holder_thread;

static void holder_dealloc(Holder *self) { /* its thread ends */
    PyTypeObject *type = Py_TYPE(self);
    if (holder == self) {
        holder = NULL;
        holder_thread = 0;
    }
    Py_XDECREF(self->scope);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* The holder of this thread; NULL if it has none yet, or with an error. */
static Holder *holder_here(void) {
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (thread == holder_thread) return holder;
    PyObject *all = PyThreadState_GetDict(), *found = all != NULL ? PyDict_GetItemWithError(all, here) : NULL;
    if (found != NULL) {
        holder = (Holder *)found;
        holder_thread = thread;
    }
    return (Holder *)found;
}

/* The scope of this thread, or None; a borrowed reference. NULL on errors. */
static PyObject *scope_here(void) {
    Holder *mine = holder_here();
    return mine != NULL ? mine->scope : PyErr_Occurred() ? NULL : Py_None;
}

static PyObject *here_get(PyObject *self, void *unused) { return Py_XNewRef(scope_here()); }

static int here_set(PyObject *self, PyObject *scope, void *unused) {
    if (scope == NULL) scope = Py_None;
    Holder *mine = holder_here();
    if (mine != NULL) {
        Py_INCREF(scope);
        Py_SETREF(mine->scope, scope);
        return 0;
    }
    if (PyErr_Occurred()) return -1;
    PyObject *all = PyThreadState_GetDict();
    if (all == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has no state, and so no scope");
        return -1;
    }
    if ((mine = PyObject_New(Holder, HolderType)) == NULL) return -1;
    mine->scope = Py_NewRef(scope);
    int failed = PyDict_SetItem(all, here, (PyObject *)mine);
    Py_DECREF(mine);
    return failed;
}

static PyType_Slot holder_slots[] = {{Py_tp_doc, "The scope of a thread."}, {Py_tp_dealloc, holder_dealloc}, {0, NULL}};
static PyType_Spec holder_spec = {
    "gt.client._native.Holder", sizeof(Holder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, holder_slots};
static PyGetSetDef here_fields[] = {{"scope", here_get, here_set, "The scope of this thread, or None."}, {NULL}};
static PyType_Slot here_slots[] = {{Py_tp_doc, "The scope of this thread."}, {Py_tp_getset, here_fields}, {0, NULL}};
static PyType_Spec here_spec = {"gt.client._native.Here", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, here_slots};

/* The part of a session that ops use. */
typedef struct {
    PyObject_HEAD
    PyObject *code;                  /* the buffer of instructions */
    PyObject *asked_code, *asked_at; /* code object and offset of the user's line of each of the last results */
    PyObject *user;                  /* globals of the user's module that issued the last op */
    Py_ssize_t limit;                /* length of `code` at which `due` is called */
    long long last;                  /* the last id given */
    char ended;                      /* closed: frees are dropped */
} Stream;

typedef struct {
    PyObject_HEAD
    PyObject *id, *spec, *session;
    PyObject *source; /* for a view's value: the id of the last base's value; else NULL */
} Handle;

/* Streams */

static PyObject *next_id(Stream *self, PyObject *unused) { return PyLong_FromLongLong(++self->last); }

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Stream *self = (Stream *)type->tp_alloc(type, 0);
    return (PyObject *)self;
}

static int stream_traverse(Stream *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->code);
    Py_VISIT(self->asked_code);
    Py_VISIT(self->asked_at);
    Py_VISIT(self->user);
    return 0;
}

static int stream_clear(Stream *self) {
    Py_CLEAR(self->code);
    Py_CLEAR(self->asked_code);
    Py_CLEAR(self->asked_at);
    Py_CLEAR(self->user);
    return 0;
}

static void stream_dealloc(Stream *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    stream_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef stream_methods[] = {
    {"next_id", (PyCFunction)next_id, METH_NOARGS, "A name for another result."}, {NULL}};
static PyMemberDef stream_members[] = {
    {"code", T_OBJECT, offsetof(Stream, code), 0},
    {"asked_code", T_OBJECT, offsetof(Stream, asked_code), 0},
    {"asked_at", T_OBJECT, offsetof(Stream, asked_at), 0},
    {"user", T_OBJECT, offsetof(Stream, user), 0},
    {"limit", T_PYSSIZET, offsetof(Stream, limit), 0},
    {"ended", T_BOOL, offsetof(Stream, ended), 0},
    {"last", T_LONGLONG, offsetof(Stream, last), READONLY},
    {NULL}};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc, "The part of a session that an op needs."},
    {Py_tp_new, stream_new},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {Py_tp_members, stream_members},
    {0, NULL}};
static PyType_Spec stream_spec = {
    "gt.client._native.Stream", sizeof(Stream), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, stream_slots};

/* Tables of kinds: dicts by (row, operands' specs or numbers' types, statics), in which the kinds of few operands that were used
   last are found by the identities of row and specs, without a key. */

#define FEW 4     /* most operands of such a kind */
#define FOUND 256 /* kinds that are found so */

typedef struct {
    PyObject *key, *known;
} Found;

typedef struct {
    PyDictObject dict;
    Found found[FOUND]; /* by a hash of the identities */
} Table;
static PyTypeObject *TableType;

static int table_traverse(Table *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (Found *found = self->found; found < self->found + FOUND; found++) {
        Py_VISIT(found->key);
        Py_VISIT(found->known);
    }
    return PyDict_Type.tp_traverse((PyObject *)self, visit, arg);
}

static int table_clear(Table *self) {
    for (Found *found = self->found; found < self->found + FOUND; found++) {
        Py_CLEAR(found->key);
        Py_CLEAR(found->known);
    }
    return PyDict_Type.tp_clear((PyObject *)self);
}

static PyObject *table_forget(Table *self, PyObject *unused) {
    if (table_clear(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static void table_dealloc(Table *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    table_clear(self);
    PyDict_Type.tp_dealloc((PyObject *)self);
    Py_DECREF(type);
}

static Found *place_of(Table *table, PyObject *row, PyObject *const *parts, Py_ssize_t n) {
    size_t hash = (size_t)row >> 4;
    for (Py_ssize_t i = 0; i < n; i++) hash = hash * 31 + ((size_t)parts[i] >> 4);
    return table->found + ((hash ^ hash >> 8 ^ hash >> 16) & (FOUND - 1));
}

/* Whether this is the kind of a row on these operands. */
static int is_found(const Found *found, PyObject *row, PyObject *const *parts, Py_ssize_t n) {
    if (found->key == NULL || PyTuple_GET_SIZE(found->key) != 1 + n || PyTuple_GET_ITEM(found->key, 0) != row) return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(found->key, 1 + i) != parts[i]) return 0;
    return 1;
}

/* The kind of a row on these operands with these statics, a borrowed reference; NULL, without an error, if it is not defined. */
static PyObject *kind_of(PyObject *table, PyObject *row, PyObject *const *parts, Py_ssize_t n, PyObject *statics) {
    Found *found = NULL;
    if (statics == NULL && n <= FEW && Py_TYPE(table) == TableType) {
        found = place_of((Table *)table, row, parts, n);
        if (is_found(found, row, parts, n)) return found->known;
    }
    PyObject *key = PyTuple_New(1 + n + (statics != NULL));
    if (key == NULL) return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(row));
    for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(key, 1 + i, Py_NewRef(parts[i]));
    if (statics != NULL) PyTuple_SET_ITEM(key, 1 + n, Py_NewRef(statics));
    PyObject *known = PyDict_GetItemWithError(table, key);
    if (known != NULL && found != NULL) {
        Py_XSETREF(found->key, Py_NewRef(key));
        Py_XSETREF(found->known, Py_NewRef(known));
    }
    Py_DECREF(key);
    return known;
}

static PyMethodDef table_methods[] = {
    {"clear", (PyCFunction)table_forget, METH_NOARGS, "Forget all kinds."}, {NULL}};
static PyType_Slot table_slots[] = {
    {Py_tp_doc, "Kinds by row, operands and statics."}, {Py_tp_traverse, table_traverse}, {Py_tp_clear, table_clear},
    {Py_tp_dealloc, table_dealloc}, {Py_tp_methods, table_methods}, {0, NULL}};
static PyType_Spec table_spec = {
    "gt.client._native.Table", sizeof(Table), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, table_slots};

/* Handles */

static PyObject *handle_make(PyObject *id, PyObject *spec, PyObject *session) {
    Handle *self = PyObject_New(Handle, HandleType);
    if (self == NULL) return NULL;
    self->id = Py_NewRef(id);
    self->spec = Py_NewRef(spec);
    self->session = Py_NewRef(session);
    self->source = NULL;
    return (PyObject *)self;
}

static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *id, *spec, *session;
    if (!PyArg_ParseTuple(args, "O!OO:Handle", &PyLong_Type, &id, &spec, &session)) return NULL;
    if (!PyObject_TypeCheck(session, StreamType)) {
        PyErr_SetString(PyExc_TypeError, "a Handle belongs to a session");
        return NULL;
    }
    return handle_make(id, spec, session);
}

static void handle_dealloc(Handle *self) {
    PyTypeObject *type = Py_TYPE(self);
    Stream *stream = (Stream *)self->session;
    if (!stream->ended && stream->code != NULL) { /* append the free instruction */
        PyObject *instruction = PyTuple_Pack(2, zero, self->id);
        if (instruction == NULL || PyList_Append(stream->code, instruction) < 0) PyErr_WriteUnraisable((PyObject *)type);
        Py_XDECREF(instruction);
    }
    Py_DECREF(self->id);
    Py_DECREF(self->spec);
    Py_DECREF(self->session);
    Py_XDECREF(self->source);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMemberDef handle_members[] = { /* T_OBJECT_EX, never NULL here, is the type that the interpreter reads fast */
    {"id", T_OBJECT_EX, offsetof(Handle, id), READONLY},
    {"spec", T_OBJECT_EX, offsetof(Handle, spec), READONLY},
    {"session", T_OBJECT_EX, offsetof(Handle, session), READONLY},
    {"source", T_OBJECT, offsetof(Handle, source), 0},
    {NULL}};
static PyType_Slot handle_slots[] = {
    {Py_tp_doc, "A value on the workers."}, {Py_tp_new, handle_new}, {Py_tp_dealloc, handle_dealloc},
    {Py_tp_members, handle_members}, {0, NULL}};
static PyType_Spec handle_spec = {"gt.client._native.Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT, handle_slots};

/* The user's line */

/* The innermost frame of the user's code, from this one outwards; `module` is given its globals. */
static PyFrameObject *users(PyFrameObject *frame, PyObject **module) {
    Py_INCREF(frame);
    for (;;) {
        PyObject *globals = PyFrame_GetGlobals(frame);
        PyObject *name = PyDict_GetItemWithError(globals, name_module);
        int ours = name != NULL && PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 3 &&
                   PyUnicode_READ_CHAR(name, 0) == 'g' && PyUnicode_READ_CHAR(name, 1) == 't' && PyUnicode_READ_CHAR(name, 2) == '.';
        PyFrameObject *back = ours ? PyFrame_GetBack(frame) : NULL;
        if (back == NULL) {
            *module = globals;
            return frame;
        }
        Py_DECREF(globals);
        Py_SETREF(frame, back);
    }
}

/* origin(): the user's line that this thread executes, as the function of this name in user_lines.py tells it. */
static PyObject *origin_(PyObject *module, PyObject *unused) {
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *globals;
    if (frame == NULL) return PyErr_Format(PyExc_RuntimeError, "no Python code runs");
    frame = users(frame, &globals);
    Py_DECREF(globals);
    PyObject *found = Py_BuildValue("(Ni)", PyFrame_GetCode(frame), PyFrame_GetLasti(frame));
    Py_DECREF(frame);
    return found;
}

/* Note the user's line of a result. */
static int note(Stream *stream, PyObject *origin, Py_ssize_t slot) {
    PyObject *code, *at;
    if (origin != Py_None) {
        code = Py_NewRef(PyTuple_GET_ITEM(origin, 0));
        at = Py_NewRef(PyTuple_GET_ITEM(origin, 1));
    } else {
        PyFrameObject *frame = PyEval_GetFrame();
        if (frame == NULL) return 0;
        PyObject *globals = PyFrame_GetGlobals(frame);
        int known = globals == stream->user;
        Py_DECREF(globals);
        if (known)
            Py_INCREF(frame);
        else {
            frame = users(frame, &globals);
            Py_XSETREF(stream->user, globals);
        }
        code = (PyObject *)PyFrame_GetCode(frame);
        at = PyLong_FromLong(PyFrame_GetLasti(frame));
        Py_DECREF(frame);
        if (at == NULL) {
            Py_DECREF(code);
            return -1;
        }
    }
    if (PyList_SetItem(stream->asked_code, slot, code) < 0) {
        Py_DECREF(at);
        return -1;
    }
    return PyList_SetItem(stream->asked_at, slot, at);
}

/* Views (views.py) */

/* Whether a view is stale, its base having another value than the one whose id is element 2 of `made`. */
static int stale(PyObject *tensor) {
    for (;;) {
        PyObject *base = SLOT(tensor, tensor_base), *made = SLOT(tensor, tensor_made);
        if (base == Py_None || !PyTuple_Check(made) || PyTuple_GET_SIZE(made) < 3) return 0;
        Handle *handle = (Handle *)SLOT(base, tensor_handle);
        if (handle == NULL || Py_TYPE(handle) != HandleType) return 0;
        if (handle->id != PyTuple_GET_ITEM(made, 2)) return 1;
        tensor = base;
    }
}

/* A descriptor of a tensor's field that renews a stale view before it is read: handle, requires_grad or node. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t offset;
    PyObject *renew, *write; /* renew(tensor); write(tensor, value) sets the field of a view */
} Field;

static PyObject *field_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member, *renew, *write;
    if (!PyArg_ParseTuple(args, "O!OO:Field", &PyMemberDescr_Type, &member, &renew, &write)) return NULL;
    Field *self = (Field *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->offset = ((PyMemberDescrObject *)member)->d_member->offset;
    self->renew = Py_NewRef(renew);
    self->write = Py_NewRef(write);
    return (PyObject *)self;
}

static PyObject *field_get(Field *self, PyObject *tensor, PyObject *type) {
    if (tensor == NULL || tensor == Py_None) return Py_NewRef((PyObject *)self);
    if (SLOT(tensor, tensor_base) != Py_None && stale(tensor)) {
        PyObject *done = PyObject_CallOneArg(self->renew, tensor);
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    return Py_NewRef(SLOT(tensor, self->offset));
}

static int field_set(Field *self, PyObject *tensor, PyObject *value) {
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a field of a tensor cannot be deleted");
        return -1;
    }
    /* whether gradients are wanted is checked where it changes; a tensor being made has no such field yet */
    PyObject *before = SLOT(tensor, self->offset);
    int checked = self->offset == tensor_requires_grad && before != NULL && before != value;
    if (SLOT(tensor, tensor_base) != Py_None || checked) {
        PyObject *done = PyObject_CallFunctionObjArgs(self->write, tensor, value, NULL);
        if (done == NULL) return -1;
        Py_DECREF(done);
        return 0;
    }
    Py_XSETREF(SLOT(tensor, self->offset), Py_NewRef(value));
    return 0;
}

static int field_traverse(Field *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->renew);
    Py_VISIT(self->write);
    return 0;
}

static int field_clear(Field *self) {
    Py_CLEAR(self->renew);
    Py_CLEAR(self->write);
    return 0;
}

static void field_dealloc(Field *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    field_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot field_slots[] = {
    {Py_tp_doc, "A field of tensors that is brought up to date before it is read."}, {Py_tp_new, field_new},
    {Py_tp_descr_get, field_get}, {Py_tp_descr_set, field_set}, {Py_tp_traverse, field_traverse}, {Py_tp_clear, field_clear},
    {Py_tp_dealloc, field_dealloc}, {0, NULL}};
static PyType_Spec field_spec = {
    "gt.client._native.Field", sizeof(Field), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, field_slots};

/* A tensor, filled slot by slot, as its constructor would look up the default of each field. Like the constructor, it lets the
   garbage collector track only tensors that may be part of a cycle. */
static PyObject *tensor_new(PyObject *handle, PyObject *requires_grad, PyObject *node) {
    PyObject *self = PyObject_GC_New(PyObject, TensorType);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, TensorType->tp_basicsize - sizeof(PyObject));
    for (size_t i = 0; i < sizeof(tensor_empty) / sizeof(*tensor_empty); i++)
        SLOT(self, *tensor_empty[i]) = Py_NewRef(Py_None);
    SLOT(self, tensor_handle) = Py_NewRef(handle);
    SLOT(self, tensor_requires_grad) = Py_NewRef(requires_grad);
    SLOT(self, tensor_node) = Py_NewRef(node);
    if (node != Py_None || PyType_IS_GC(Py_TYPE(handle))) PyObject_GC_Track(self);
    return self;
}

/* The tape: the node of an op. `kept` are the results that its gradient reads. */
static PyObject *node_new(PyObject *known, PyObject *plan, PyObject *const *operands, Py_ssize_t n, long long mask, PyObject *kept,
                          PyObject *scope, PyObject *id) {
    PyObject *keep = SLOT(plan, plan_keep), *inputs = PyList_New(n), *edges = PyTuple_New(n), *node = NULL;
    if (inputs == NULL || edges == NULL) goto done;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i], *input = operand, *edge = Py_None;
        if (PyObject_TypeCheck(operand, TensorType)) {
            Handle *handle = (Handle *)SLOT(operand, tensor_handle);
            input = PyTuple_GET_ITEM(keep, i) == Py_True ? (PyObject *)handle : handle->spec;
            if (i < MOST && mask >> i & 1) {
                edge = SLOT(operand, tensor_node);
                if (edge == Py_None) edge = operand;
            }
        }
        PyList_SET_ITEM(inputs, i, Py_NewRef(input));
        PyTuple_SET_ITEM(edges, i, Py_NewRef(edge));
    }
    PyObject *parts[] = {known, plan, inputs, edges, kept, scope, id};
    node = PyObject_Vectorcall((PyObject *)NodeType, parts, 7, NULL);
done:
    Py_XDECREF(inputs);
    Py_XDECREF(edges);
    return node;
}

/* The result of an op with one result, on the tape. */
static PyObject *taped(PyObject *known, PyObject *plan, PyObject *const *operands, Py_ssize_t n, long long mask, PyObject *out,
                       PyObject *scope, PyObject *id) {
    PyObject *kept = SLOT(plan, plan_keeps_output) == Py_True ? out : Py_None;
    PyObject *node = node_new(known, plan, operands, n, mask, kept, scope, id), *result = NULL;
    if (node != NULL) result = tensor_new(out, Py_True, node);
    Py_XDECREF(node);
    return result;
}

/* The results of an op with several, whose ids are in its instruction; on the tape if there is a plan. */
static PyObject *several(PyObject *known, PyObject *plan, PyObject *const *operands, Py_ssize_t n, long long mask,
                         PyObject *instruction, PyObject *scope, PyObject *session) {
    PyObject *specs = SLOT(known, known_outs), *floats = SLOT(known, known_floats), *node = NULL, *kept = NULL, *results = NULL;
    Py_ssize_t n_results = PyTuple_GET_SIZE(specs);
    PyObject *handles = PyList_New(n_results);
    if (handles == NULL) return NULL;
    for (Py_ssize_t i = 0; i < n_results; i++) {
        PyObject *made = handle_make(PyTuple_GET_ITEM(instruction, 1 + i), PyTuple_GET_ITEM(specs, i), session);
        if (made == NULL) goto done;
        PyList_SET_ITEM(handles, i, made);
    }
    if (plan != NULL) {
        PyObject *keeps = SLOT(plan, plan_keeps_output);
        kept = keeps == Py_True ? Py_NewRef(handles) : keeps == Py_False ? Py_NewRef(Py_None) : PyObject_CallOneArg(keeps, handles);
        if (kept == NULL) goto done;
        node = node_new(known, plan, operands, n, mask, kept, scope, PyTuple_GET_ITEM(instruction, 1));
        if (node == NULL) goto done;
    }
    results = PyTuple_New(n_results);
    for (Py_ssize_t i = 0; i < n_results && results != NULL; i++) {
        PyObject *port = NULL, *result, *handle = PyList_GET_ITEM(handles, i);
        if (node != NULL && PyTuple_GET_ITEM(floats, i) == Py_True) {
            PyObject *index = PyLong_FromSsize_t(i), *parts[] = {node, index};
            port = index ? PyObject_Vectorcall((PyObject *)PortType, parts, 2, NULL) : NULL;
            Py_XDECREF(index);
            result = port ? tensor_new(handle, Py_True, port) : NULL;
            Py_XDECREF(port);
        } else {
            result = tensor_new(handle, Py_False, Py_None);
        }
        if (result == NULL)
            Py_CLEAR(results);
        else
            PyTuple_SET_ITEM(results, i, result);
    }
done:
    Py_XDECREF(kept);
    Py_XDECREF(node);
    Py_DECREF(handles);
    return results;
}

/* Issue an op on these operands. NotImplemented, without any effect, for cases that are left to Python. */
static PyObject *issue(PyObject *row, PyObject *const *operands, Py_ssize_t n, PyObject *statics) {
    if (n < 1) return Py_NewRef(nothing);
    PyObject *scope = Py_XNewRef(scope_here()), *session = NULL, *result = NULL;
    PyObject *instruction = NULL, *out = NULL, *few[FEW], **parts = few;
    if (scope == NULL) return NULL;
    if (Py_TYPE(scope) != ScopeType) goto unusual;
    session = SLOT(scope, scope_session);
    long long mask = 0;
    if (n > FEW && (parts = PyMem_New(PyObject *, n)) == NULL) goto done;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i], *part;
        if (PyObject_TypeCheck(operand, TensorType)) {
            Handle *handle = (Handle *)SLOT(operand, tensor_handle);
            if (handle == NULL || Py_TYPE(handle) != HandleType || handle->session != session) goto unusual;
            if (SLOT(operand, tensor_base) != Py_None && stale(operand)) goto unusual;
            part = handle->spec;
            if (SLOT(operand, tensor_requires_grad) == Py_True) {
                if (i >= MOST) goto unusual;
                mask |= 1LL << i;
            }
        } else if (PyFloat_CheckExact(operand) || PyLong_CheckExact(operand) || PyBool_Check(operand)) {
            part = (PyObject *)Py_TYPE(operand);
        } else {
            goto unusual;
        }
        parts[i] = part;
    }
    PyObject *known = kind_of(SLOT(scope, scope_kinds), row, parts, n, statics), *plan = NULL;
    if (known == NULL && PyErr_Occurred()) goto done;
    if (known == NULL) goto unusual;
    Py_ssize_t n_results = PyTuple_GET_SIZE(SLOT(known, known_outs));
    if (n_results < 1) goto unusual;
    if (mask && SLOT(scope, scope_grad) == Py_True) {
        if (SLOT(known, known_differentiable) == Py_True) {
            PyObject *bits = PyLong_FromLongLong(mask);
            plan = bits ? PyDict_GetItemWithError(SLOT(known, known_pulls), bits) : NULL;
            Py_XDECREF(bits);
            if (plan == NULL && PyErr_Occurred()) goto done;
            if (plan == NULL || (n_results == 1 && !PyBool_Check(SLOT(plan, plan_keeps_output)))) goto unusual;
        } else if (statics != NULL || n_results > 1) {
            goto unusual; /* Python may decompose it into differentiable ops */
        }
    }
    Py_INCREF(known);
    Py_XINCREF(plan);
    Stream *stream = (Stream *)session;
    Py_ssize_t ring = PyList_GET_SIZE(stream->asked_code) - 1;
    instruction = PyTuple_New(1 + n_results + n);
    if (instruction == NULL) goto issued;
    PyTuple_SET_ITEM(instruction, 0, Py_NewRef(SLOT(known, known_number)));
    long long first = stream->last + 1;
    stream->last += n_results;
    for (Py_ssize_t i = 0; i < n_results; i++) {
        PyObject *each = PyLong_FromLongLong(first + i);
        if (each == NULL) goto issued;
        PyTuple_SET_ITEM(instruction, 1 + i, each);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i];
        int tensor = PyObject_TypeCheck(operand, TensorType);
        PyTuple_SET_ITEM(instruction, 1 + n_results + i, Py_NewRef(tensor ? ((Handle *)SLOT(operand, tensor_handle))->id : operand));
    }
    if (PyList_Append(stream->code, instruction) < 0) goto issued;
    for (Py_ssize_t i = 0; i < n_results; i++)
        if (note(stream, SLOT(scope, scope_origin), (first + i) & ring) < 0) goto issued;
    if (PyList_GET_SIZE(stream->code) >= stream->limit) {
        PyObject *sent = PyObject_CallMethodNoArgs(session, name_due);
        if (sent == NULL) goto issued;
        Py_DECREF(sent);
    }
    if (n_results > 1) {
        result = several(known, plan, operands, n, mask, instruction, scope, session);
        goto issued;
    }
    PyObject *id = PyTuple_GET_ITEM(instruction, 1);
    out = handle_make(id, SLOT(known, known_out), session);
    if (out == NULL) goto issued;
    result = plan != NULL ? taped(known, plan, operands, n, mask, out, scope, id)
                          : tensor_new(out, Py_False, Py_None);
    if (result != NULL && SLOT(known, known_view) == Py_True) {
        PyObject *how = mask && SLOT(scope, scope_grad) != Py_True ? SLOT(known, known_unseen) : known;
        Py_XSETREF(SLOT(result, tensor_base), Py_NewRef(operands[0]));
        Py_XSETREF(SLOT(result, tensor_how), Py_NewRef(how));
        Py_XSETREF(SLOT(result, tensor_made), Py_NewRef(instruction));
        Handle *from = (Handle *)SLOT(operands[0], tensor_handle);
        PyObject *source = from->source == NULL || from->source == Py_None ? from->id : from->source;
        Py_XSETREF(((Handle *)out)->source, Py_NewRef(source));
    }
issued:
    Py_DECREF(known);
    Py_XDECREF(plan);
    goto done;
unusual:
    result = Py_NewRef(nothing);
done:
    if (parts != few) PyMem_Free(parts);
    Py_XDECREF(out);
    Py_XDECREF(instruction);
    Py_DECREF(scope);
    return result;
}

/* The function of a row, also a method of tensors; `python` is its Python version. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *row, *python;
} Op;

static PyObject *op_call(Op *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    if (names == NULL) {
        PyObject *result = issue(self->row, args, PyVectorcall_NARGS(nargsf), NULL);
        if (result != nothing) return result;
        Py_DECREF(result);
    }
    return PyObject_Vectorcall(self->python, args, nargsf, names);
}

static PyObject *op_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *row, *python;
    if (!PyArg_ParseTuple(args, "OO:Op", &row, &python)) return NULL;
    Op *self = (Op *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = (vectorcallfunc)op_call;
    self->row = Py_NewRef(row);
    self->python = Py_NewRef(python);
    return (PyObject *)self;
}

static int op_traverse(Op *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->row);
    Py_VISIT(self->python);
    return 0;
}

static int op_clear(Op *self) {
    Py_CLEAR(self->row);
    Py_CLEAR(self->python);
    return 0;
}

static void op_dealloc(Op *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    op_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *op_bind(PyObject *self, PyObject *object, PyObject *type) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Op, call), READONLY},
    {"__wrapped__", T_OBJECT, offsetof(Op, python), READONLY},
    {NULL}};
static PyType_Slot op_slots[] = {
    {Py_tp_doc, "The function of a row."}, {Py_tp_new, op_new}, {Py_tp_traverse, op_traverse}, {Py_tp_clear, op_clear},
    {Py_tp_dealloc, op_dealloc}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, op_bind}, {Py_tp_members, op_members},
    {0, NULL}};
static PyType_Spec op_spec = {
    "gt.client._native.Op", sizeof(Op), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, op_slots};

static PyObject *reference; /* apply.reference, for the cases that are left to Python */

static PyObject *otherwise(PyObject *module, PyObject *function) {
    Py_XSETREF(reference, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* apply(row, operands, statics=()): the results of an op. */
static PyObject *apply(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n < 2 || n > 3) {
        PyErr_Format(PyExc_TypeError, "apply expects a row, its operands and its statics, got %zd arguments", n);
        return NULL;
    }
    PyObject *all[] = {args[0], args[1], n == 3 ? args[2] : empty};
    if (PyTuple_CheckExact(all[1])) {
        PyObject *result = issue(all[0], ((PyTupleObject *)all[1])->ob_item, PyTuple_GET_SIZE(all[1]), all[2]);
        if (result != nothing) return result;
        Py_DECREF(result);
    }
    return PyObject_Vectorcall(reference, all, 3, NULL);
}

/* Ops on lists (foreach.py) */

/* The element of a kind's key for this operand: its spec, or a number's type. NULL, without an error, if left to Python. */
static PyObject *part_of(PyObject *operand, PyObject *session) {
    if (PyObject_TypeCheck(operand, TensorType)) {
        Handle *handle = (Handle *)SLOT(operand, tensor_handle);
        if (handle == NULL || Py_TYPE(handle) != HandleType || handle->session != session) return NULL;
        if (SLOT(operand, tensor_base) != Py_None && stale(operand)) return NULL;
        return handle->spec;
    }
    if (PyFloat_CheckExact(operand) || PyLong_CheckExact(operand) || PyBool_Check(operand)) return (PyObject *)Py_TYPE(operand);
    return NULL;
}

static PyObject *value_of(PyObject *operand) {
    return PyObject_TypeCheck(operand, TensorType) ? ((Handle *)SLOT(operand, tensor_handle))->id : operand;
}

/* New handles of these specs, which are grouped by item, as a list for each result of an item. */
static PyObject *columns_of(PyObject *instruction, PyObject *specs, PyObject *session, Py_ssize_t items) {
    Py_ssize_t n_results = PyTuple_GET_SIZE(specs), each = items ? n_results / items : 0;
    PyObject *columns = PyList_New(each);
    if (columns == NULL) return NULL;
    for (Py_ssize_t j = 0; j < each; j++) {
        PyObject *column = PyList_New(items);
        if (column == NULL) goto failed;
        PyList_SET_ITEM(columns, j, column);
        for (Py_ssize_t i = 0; i < items; i++) {
            Py_ssize_t at = i * each + j;
            PyObject *made = handle_make(PyTuple_GET_ITEM(instruction, 1 + at), PyTuple_GET_ITEM(specs, at), session);
            if (made == NULL) goto failed;
            PyList_SET_ITEM(column, i, made);
        }
    }
    return columns;
failed:
    Py_DECREF(columns);
    return NULL;
}

/* foreach(row, operands, statics): the results' handles, or NotImplemented if left to Python. */
static PyObject *foreach(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !PyTuple_CheckExact(args[1])) return Py_NewRef(nothing);
    PyObject *operands = args[1], *scope = Py_XNewRef(scope_here()), *key = NULL, *result = NULL, *instruction = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(operands), flat = 0, lists = 0, items = -1, at = 3;
    if (scope == NULL) return NULL;
    if (Py_TYPE(scope) != ScopeType || SLOT(scope, scope_grad) == Py_True) goto unusual;
    PyObject *session = SLOT(scope, scope_session);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *operand = PyTuple_GET_ITEM(operands, i);
        if (PyList_CheckExact(operand)) {
            if (items >= 0 && PyList_GET_SIZE(operand) != items) goto unusual;
            items = PyList_GET_SIZE(operand);
            flat += items;
            lists++;
        } else {
            flat++;
        }
    }
    if (items < 1 || (key = PyTuple_New(3 + flat + lists)) == NULL) goto unusual;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(name_foreach));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(args[0]));
    PyTuple_SET_ITEM(key, 2, Py_NewRef(args[2]));
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *operand = PyTuple_GET_ITEM(operands, i), *part;
        if (PyList_CheckExact(operand)) {
            if ((part = PyLong_FromSsize_t(items)) == NULL) goto done;
            PyTuple_SET_ITEM(key, at++, part);
            for (Py_ssize_t k = 0; k < items; k++) {
                if ((part = part_of(PyList_GET_ITEM(operand, k), session)) == NULL) goto unusual;
                PyTuple_SET_ITEM(key, at++, Py_NewRef(part));
            }
        } else {
            if ((part = part_of(operand, session)) == NULL) goto unusual;
            PyTuple_SET_ITEM(key, at++, Py_NewRef(part));
        }
    }
    PyObject *known = PyDict_GetItemWithError(SLOT(scope, scope_kinds), key);
    if (known == NULL) {
        if (PyErr_Occurred()) goto done;
        goto unusual;
    }
    Stream *stream = (Stream *)session;
    PyObject *specs = SLOT(known, known_outs);
    Py_ssize_t n_results = PyTuple_GET_SIZE(specs), ring = PyList_GET_SIZE(stream->asked_code) - 1;
    instruction = PyTuple_New(1 + n_results + flat);
    if (instruction == NULL) goto done;
    PyTuple_SET_ITEM(instruction, 0, Py_NewRef(SLOT(known, known_number)));
    Py_INCREF(known);
    for (Py_ssize_t i = 0; i < n_results; i++) {
        long long number = ++stream->last;
        PyObject *id = PyLong_FromLongLong(number);
        if (id == NULL) goto issued;
        PyTuple_SET_ITEM(instruction, 1 + i, id);
        if (note(stream, SLOT(scope, scope_origin), number & ring) < 0) goto issued;
    }
    at = 1 + n_results;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *operand = PyTuple_GET_ITEM(operands, i);
        if (PyList_CheckExact(operand))
            for (Py_ssize_t k = 0; k < items; k++) PyTuple_SET_ITEM(instruction, at++, Py_NewRef(value_of(PyList_GET_ITEM(operand, k))));
        else
            PyTuple_SET_ITEM(instruction, at++, Py_NewRef(value_of(operand)));
    }
    if (PyList_Append(stream->code, instruction) == 0) result = columns_of(instruction, specs, session, items);
issued:
    Py_DECREF(known);
    goto done;
unusual:
    if (!PyErr_Occurred()) result = Py_NewRef(nothing);
done:
    Py_XDECREF(instruction);
    Py_XDECREF(key);
    Py_DECREF(scope);
    return result;
}

/* overwrite(tensors, handles, since by id or None, since): set the values of variables off the tape. Returns the indices of
   views, which are left to Python. */
static PyObject *overwrite(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 4 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1]) ||
        PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "overwrite: expected two lists of one length");
        return NULL;
    }
    PyObject *left = PyList_New(0);
    if (left == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
        PyObject *tensor = PyList_GET_ITEM(args[0], i), *value = PyList_GET_ITEM(args[1], i), *made = NULL;
        Handle *old = PyObject_TypeCheck(tensor, TensorType) ? (Handle *)SLOT(tensor, tensor_handle) : NULL;
        if (old == NULL || Py_TYPE(old) != HandleType || Py_TYPE(value) != HandleType ||
            SLOT(tensor, tensor_base) != Py_None) {
            PyObject *index = PyLong_FromSsize_t(i);
            if (index == NULL || PyList_Append(left, index) < 0) {
                Py_XDECREF(index);
                goto failed;
            }
            Py_DECREF(index);
            continue;
        }
        if (args[2] != Py_None) {
            PyObject *id = old->source == NULL || old->source == Py_None ? old->id : old->source;
            if (PyDict_SetItem(args[2], id, args[3]) < 0) goto failed;
            PyObject *count = SLOT(tensor, tensor_made);
            made = PyLong_FromLongLong(count == Py_None ? 1 : PyLong_AsLongLong(count) + 1);
            if (made == NULL || PyErr_Occurred()) {
                Py_XDECREF(made);
                goto failed;
            }
            Py_XSETREF(SLOT(tensor, tensor_made), made);
        }
        Py_INCREF(value);
        Py_XSETREF(SLOT(tensor, tensor_handle), value);
    }
    return left;
failed:
    Py_DECREF(left);
    return NULL;
}

/* Parameters in a tree of modules (gt/nn/module.py) */

typedef struct {
    PyTypeObject *module, *parameter;
    PyObject *plain[3]; /* `_members`, `named_modules` and `_own_parameters` of Module itself */
    PyObject *modules;  /* visited modules, by address */
    PyObject *seen, *found;
    int unusual;
} Tree;

static PyObject *tree_names[3];

static int add_once(PyObject *set, void *address) {
    PyObject *key = PyLong_FromVoidPtr(address);
    if (key == NULL) return -1;
    int known = PySet_Contains(set, key);
    if (known == 0 && PySet_Add(set, key) < 0) known = -1;
    Py_DECREF(key);
    return known < 0 ? -1 : !known;
}

/* Note a parameter or module; other members are ignored. -1 on an error. */
static int tree_look(Tree *tree, PyObject *name, PyObject *thing, PyObject *buffers, PyObject *inner) {
    if (PyObject_TypeCheck(thing, tree->parameter)) {
        int buffer = buffers == NULL ? 0 : PyDict_Contains(buffers, name);
        if (buffer) return buffer < 0 ? -1 : 0;
        int fresh = add_once(tree->seen, thing);
        return fresh > 0 ? PyList_Append(tree->found, thing) : fresh;
    }
    return PyObject_TypeCheck(thing, tree->module) ? PyList_Append(inner, thing) : 0;
}

static int tree_members(Tree *tree, PyObject *module, PyObject *dict, PyObject *inner) {
    PyObject *type = (PyObject *)Py_TYPE(module), *buffers = PyDict_GetItemString(dict, "_registered"), *own[3];
    for (int i = 0; i < 3; i++) {
        own[i] = PyObject_GetAttr(type, tree_names[i]);
        if (own[i] == NULL) return -1;
        Py_DECREF(own[i]); /* the class holds it */
        if (i && own[i] != tree->plain[i]) tree->unusual = 1;
    }
    if (buffers != NULL && !PyDict_Check(buffers)) buffers = NULL;
    if (tree->unusual) return 0;
    if (own[0] == tree->plain[0]) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(dict, &at, &key, &value))
            if (tree_look(tree, key, value, buffers, inner) < 0) return -1;
        return 0;
    }
    PyObject *members = PyObject_CallMethodNoArgs(module, tree_names[0]);
    PyObject *pairs = members ? PySequence_List(members) : NULL;
    Py_XDECREF(members);
    if (pairs == NULL) return -1;
    int done = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs) && done == 0; i++) {
        PyObject *pair = PyList_GET_ITEM(pairs, i);
        if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
            done = tree_look(tree, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), buffers, inner);
        else
            tree->unusual = 1;
    }
    Py_DECREF(pairs);
    return done;
}

static int tree_walk(Tree *tree, PyObject *module) {
    int fresh = add_once(tree->modules, module);
    if (fresh <= 0) return fresh;
    PyObject *dict = PyObject_GenericGetDict(module, NULL), *inner = PyList_New(0);
    int done = -1;
    if (dict == NULL || inner == NULL || Py_EnterRecursiveCall(" in a tree of modules")) goto end;
    done = tree_members(tree, module, dict, inner);
    for (Py_ssize_t i = 0; done == 0 && !tree->unusual && i < PyList_GET_SIZE(inner); i++)
        done = tree_walk(tree, PyList_GET_ITEM(inner, i));
    Py_LeaveRecursiveCall();
end:
    Py_XDECREF(dict);
    Py_XDECREF(inner);
    return done;
}

/* parameters(module, Module, Parameter): every parameter once, or NotImplemented if a class overrides the search. */
static PyObject *parameters(PyObject *unused, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !PyType_Check(args[1]) || !PyType_Check(args[2]) || !PyObject_TypeCheck(args[0], (PyTypeObject *)args[1]))
        return Py_NewRef(nothing);
    Tree tree = {(PyTypeObject *)args[1], (PyTypeObject *)args[2], {NULL}, PySet_New(NULL), PySet_New(NULL), PyList_New(0), 0};
    PyObject *result = NULL;
    int done = tree.modules == NULL || tree.seen == NULL || tree.found == NULL ? -1 : 0;
    for (int i = 0; i < 3 && done == 0; i++) {
        tree.plain[i] = PyObject_GetAttr(args[1], tree_names[i]);
        if (tree.plain[i] == NULL) done = -1;
    }
    if (done == 0) done = tree_walk(&tree, args[0]);
    if (done == 0) result = Py_NewRef(tree.unusual ? nothing : tree.found);
    for (int i = 0; i < 3; i++) Py_XDECREF(tree.plain[i]);
    Py_XDECREF(tree.modules);
    Py_XDECREF(tree.seen);
    Py_XDECREF(tree.found);
    return result;
}

/* The walk over the tape (backward.py) */

typedef struct {
    long long order;
    PyObject *node;
} Due;

typedef struct {
    PyObject *arrived;                                 /* arrived gradients, by node */
    PyObject *check, *enter, *found, *shaped, *deliver; /* Python's: see `walk` */
    Due *due;                                          /* a heap of nodes, the latest op first */
    Py_ssize_t count, room;
    int retain;
} Walk;

static int due_push(Walk *walk, PyObject *node) {
    long long order = PyLong_AsLongLong(SLOT(node, node_order));
    if (order == -1 && PyErr_Occurred()) return -1;
    if (walk->count == walk->room) {
        Py_ssize_t room = walk->room ? 2 * walk->room : 64;
        Due *due = PyMem_Realloc(walk->due, room * sizeof(Due));
        if (due == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        walk->due = due;
        walk->room = room;
    }
    Py_ssize_t at = walk->count++;
    while (at && walk->due[(at - 1) / 2].order < order) {
        walk->due[at] = walk->due[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    walk->due[at] = (Due){order, Py_NewRef(node)};
    return 0;
}

static PyObject *due_pop(Walk *walk) {
    PyObject *node = walk->due[0].node;
    Due last = walk->due[--walk->count];
    Py_ssize_t at = 0, next;
    while ((next = 2 * at + 1) < walk->count) {
        if (next + 1 < walk->count && walk->due[next + 1].order > walk->due[next].order) next++;
        if (walk->due[next].order <= last.order) break;
        walk->due[at] = walk->due[next];
        at = next;
    }
    if (walk->count) walk->due[at] = last;
    return node;
}

static int done(PyObject *result) {
    Py_XDECREF(result);
    return result != NULL ? 0 : -1;
}

/* The number of results of a node's op; -1 on an error. */
static Py_ssize_t result_count_of(PyObject *node) {
    PyObject *known = SLOT(node, node_known);
    if (Py_TYPE(known) == KnownType) return PyTuple_GET_SIZE(SLOT(known, known_outs));
    PyObject *outs = PyObject_GetAttrString(known, "outs");
    Py_ssize_t count = outs != NULL ? PyObject_Length(outs) : -1;
    Py_XDECREF(outs);
    return count;
}

static int give_port(Walk *walk, PyObject *port, PyObject *g) {
    PyObject *node = SLOT(port, port_node), *parts = PyDict_GetItemWithError(walk->arrived, node);
    Py_ssize_t at = PyLong_AsSsize_t(SLOT(port, port_index));
    if (PyErr_Occurred()) return -1;
    if (parts == NULL) {
        Py_ssize_t n_results = result_count_of(node);
        if (n_results < 0 || (parts = PyList_New(n_results)) == NULL) return -1;
        for (Py_ssize_t i = 0; i < n_results; i++) PyList_SET_ITEM(parts, i, Py_NewRef(Py_None));
        int failed = PyDict_SetItem(walk->arrived, node, parts) < 0 || due_push(walk, node) < 0;
        Py_DECREF(parts); /* `arrived` holds it */
        if (failed) return -1;
    }
    if (!PyList_Check(parts) || at < 0 || at >= PyList_GET_SIZE(parts)) {
        PyErr_SetString(PyExc_RuntimeError, "a port of the tape is outside of its op's results");
        return -1;
    }
    PyObject *before = PyList_GET_ITEM(parts, at), *sum = before == Py_None ? Py_NewRef(g) : PyNumber_Add(before, g);
    return sum != NULL ? PyList_SetItem(parts, at, sum) : -1;
}

/* Whether a gradient may be given the value of a sum: no gradient of the sum is wanted, and both have one spec. */
static int in_place_of(PyObject *before, PyObject *sum) {
    if (!PyObject_TypeCheck(sum, TensorType)) return 0;
    Handle *have = (Handle *)SLOT(before, tensor_handle), *want = (Handle *)SLOT(sum, tensor_handle);
    if (have == NULL || want == NULL || Py_TYPE(have) != HandleType || Py_TYPE(want) != HandleType) return 0;
    return have->spec == want->spec && SLOT(sum, tensor_requires_grad) == Py_False && SLOT(sum, tensor_base) == Py_None;
}

/* Set the gradient of a leaf without hooks to a new variable, as several leaves may get the same gradient. */
static int give_leaf(Walk *walk, PyObject *leaf, PyObject *g) {
    PyObject *before = SLOT(leaf, tensor_grad), *hooks = SLOT(leaf, tensor_hooks), *grad;
    int hooked = hooks == Py_None ? 0 : PyObject_IsTrue(hooks);
    if (hooked < 0) return -1;
    if (hooked || !PyObject_TypeCheck(g, TensorType) || (SLOT(g, tensor_base) != Py_None && stale(g)) ||
        (before != Py_None && (!PyObject_TypeCheck(before, TensorType) || SLOT(before, tensor_base) != Py_None)))
        return done(PyObject_CallFunctionObjArgs(walk->deliver, leaf, g, NULL));
    grad = before == Py_None ? tensor_new(SLOT(g, tensor_handle), SLOT(g, tensor_requires_grad), SLOT(g, tensor_node))
                             : PyNumber_Add(before, g);
    if (grad == NULL) return -1;
    if (before != Py_None && in_place_of(before, grad)) { /* whoever holds the gradient sees the sum: `accumulate` */
        Py_XSETREF(SLOT(before, tensor_handle), Py_NewRef(SLOT(grad, tensor_handle)));
        Py_DECREF(grad);
        return 0;
    }
    Py_XSETREF(SLOT(leaf, tensor_grad), grad);
    if (!PyObject_GC_IsTracked(leaf)) PyObject_GC_Track(leaf); /* as setting the field in Python does */
    return 0;
}

/* Propagate a gradient along an edge: `deliver` of backward.py. */
static int give(Walk *walk, PyObject *edge, PyObject *g) {
    if (Py_TYPE(edge) == PortType) return give_port(walk, edge, g);
    if (PyObject_TypeCheck(edge, TensorType)) return give_leaf(walk, edge, g);
    if (!PyObject_TypeCheck(edge, NodeType)) return done(PyObject_CallFunctionObjArgs(walk->deliver, edge, g, NULL));
    PyObject *before = PyDict_GetItemWithError(walk->arrived, edge);
    if (before == NULL)
        return PyErr_Occurred() || PyDict_SetItem(walk->arrived, edge, g) < 0 ? -1 : due_push(walk, edge);
    PyObject *sum = PyNumber_Add(before, g);
    int failed = sum == NULL || PyDict_SetItem(walk->arrived, edge, sum) < 0;
    Py_XDECREF(sum);
    return failed ? -1 : 0;
}

/* The same, after giving the gradient its input's shape and dtype. */
static int give_shaped(Walk *walk, PyObject *edge, PyObject *g, PyObject *spec) {
    Handle *handle = PyObject_TypeCheck(g, TensorType) ? (Handle *)SLOT(g, tensor_handle) : NULL;
    if (handle != NULL && Py_TYPE(handle) == HandleType && handle->spec == spec) return give(walk, edge, g);
    PyObject *other = PyObject_CallFunctionObjArgs(walk->shaped, g, spec, NULL);
    int failed = other == NULL || give(walk, edge, other) < 0;
    Py_XDECREF(other);
    return failed ? -1 : 0;
}

/* An argument of a gradient's function: a handle's value as a tensor off the tape, other objects unchanged. */
static PyObject *value_held(PyObject *held) {
    return held != NULL && Py_TYPE(held) == HandleType ? tensor_new(held, Py_False, Py_None) : Py_NewRef(held);
}

#define READERS 16 /* most arguments of a gradient's function, and most functions of an op */

/* Call one function of a gradient plan with the arguments that its readers name. */
static PyObject *pull_one(PyObject *function, PyObject *readers, PyObject *g, PyObject *inputs, PyObject *output) {
    PyObject *args[READERS], *result = NULL;
    Py_ssize_t n = 0;
    for (; n < PyList_GET_SIZE(readers); n++) {
        PyObject *reader = PyList_GET_ITEM(readers, n);
        if (PyTuple_CheckExact(reader))
            args[n] = Py_NewRef(PyTuple_GET_ITEM(reader, 0));
        else if (PyLong_CheckExact(reader))
            args[n] = value_held(PyList_GET_ITEM(inputs, PyLong_AsSsize_t(reader)));
        else
            args[n] = PyUnicode_READ_CHAR(reader, 0) == 'g' ? Py_NewRef(g) : value_held(output);
        if (args[n] == NULL) goto end;
    }
    result = PyObject_Vectorcall(function, args, n, NULL);
end:
    while (n--) Py_XDECREF(args[n]);
    return result;
}

/* The gradient of each input by its own function; 1, without any effect, if left to Python. */
static int pull_each(Walk *walk, PyObject *plan, PyObject *g, PyObject *inputs, PyObject *output, PyObject *edges) {
    PyObject *pulls = SLOT(plan, plan_pulls), *ins = SLOT(plan, plan_ins), *found[READERS];
    Py_ssize_t count = PyList_GET_SIZE(pulls), n = 0;
    if (count > READERS) return 1;
    for (Py_ssize_t k = 0; k < count; k++)
        if (PyList_GET_SIZE(PyTuple_GET_ITEM(PyList_GET_ITEM(pulls, k), 2)) > READERS) return 1;
    int failed = 0;
    for (; n < count && !failed; n++) {
        PyObject *pull = PyList_GET_ITEM(pulls, n);
        found[n] = pull_one(PyTuple_GET_ITEM(pull, 1), PyTuple_GET_ITEM(pull, 2), g, inputs, output);
        failed = found[n] == NULL ? -1 : 0;
    }
    for (Py_ssize_t k = 0; k < n && !failed; k++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(PyList_GET_ITEM(pulls, k), 0));
        failed = give_shaped(walk, PySequence_Fast_GET_ITEM(edges, at), found[k], PyTuple_GET_ITEM(ins, at));
    }
    while (n--) Py_XDECREF(found[n]);
    return failed;
}

/* Propagate the gradients of all inputs, in `found`. */
static int give_all(Walk *walk, PyObject *edges, PyObject *ins, PyObject *found) {
    Py_ssize_t n = PySequence_Fast_GET_SIZE(edges);
    if (PySequence_Fast_GET_SIZE(ins) < n) n = PySequence_Fast_GET_SIZE(ins);
    if (PyList_GET_SIZE(found) < n) n = PyList_GET_SIZE(found);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *edge = PySequence_Fast_GET_ITEM(edges, i), *grad = PyList_GET_ITEM(found, i);
        if (edge != Py_None && grad != Py_None && give_shaped(walk, edge, grad, PySequence_Fast_GET_ITEM(ins, i)) < 0) return -1;
    }
    return 0;
}

static PyObject *values_held(PyObject *held) {
    PyObject *values = PyList_New(PyList_GET_SIZE(held));
    for (Py_ssize_t i = 0; values != NULL && i < PyList_GET_SIZE(held); i++) {
        PyObject *value = value_held(PyList_GET_ITEM(held, i));
        if (value == NULL) Py_CLEAR(values);
        else PyList_SET_ITEM(values, i, value);
    }
    return values;
}

static PyObject *listed(PyObject *thing) {
    if (PyList_CheckExact(thing)) return Py_NewRef(thing);
    PyObject *list = PyList_New(1);
    if (list != NULL) PyList_SET_ITEM(list, 0, Py_NewRef(thing));
    return list;
}

/* The gradients of all inputs by one function of gradients, results and inputs; 1 if left to Python. */
static int pull_whole(Walk *walk, PyObject *plan, PyObject *g, PyObject *inputs, PyObject *output, PyObject *edges) {
    if (PyList_CheckExact(g)) /* unused results need zeros, which Python fills in */
        for (Py_ssize_t i = 0, main = PyLong_AsSsize_t(SLOT(plan, plan_main)); i < main && i < PyList_GET_SIZE(g); i++)
            if (PyList_GET_ITEM(g, i) == Py_None) return 1;
    PyObject *gs = listed(g), *held = listed(output), *args = NULL, *result = NULL, *found = NULL;
    PyObject *ys = held ? values_held(held) : NULL, *xs = values_held(inputs);
    if (gs != NULL && ys != NULL && xs != NULL) args = PyTuple_Pack(3, gs, ys, xs);
    if (args != NULL) result = PyObject_Call(SLOT(plan, plan_function), args, SLOT(plan, plan_settings));
    Py_XDECREF(args);
    Py_XDECREF(held);
    Py_XDECREF(ys);
    Py_XDECREF(gs);
    Py_XDECREF(xs);
    if (result != NULL) found = PySequence_List(result);
    Py_XDECREF(result);
    int failed = found == NULL ? -1 : give_all(walk, edges, SLOT(plan, plan_ins), found);
    Py_XDECREF(found);
    return failed;
}

/* Any other op: its gradients are computed in Python. */
static int pull_other(Walk *walk, PyObject *node, PyObject *g) {
    PyObject *result = PyObject_CallFunctionObjArgs(walk->found, node, g, NULL);
    PyObject *kind = result ? PyObject_GetAttrString(SLOT(node, node_known), "kind") : NULL;
    PyObject *ins = kind ? PyObject_GetAttrString(kind, "ins") : NULL, *specs = ins ? PySequence_List(ins) : NULL;
    PyObject *found = specs ? PySequence_List(result) : NULL, *edges = found ? PySequence_List(SLOT(node, node_edges)) : NULL;
    int failed = edges == NULL ? -1 : give_all(walk, edges, specs, found);
    Py_XDECREF(edges);
    Py_XDECREF(found);
    Py_XDECREF(specs);
    Py_XDECREF(ins);
    Py_XDECREF(kind);
    Py_XDECREF(result);
    return failed;
}

static int pull(Walk *walk, PyObject *node, PyObject *g) {
    PyObject *plan = Py_NewRef(SLOT(node, node_plan)), *inputs = Py_NewRef(SLOT(node, node_inputs));
    PyObject *output = Py_NewRef(SLOT(node, node_output)), *edges = Py_NewRef(SLOT(node, node_edges));
    int failed = 1;
    if (Py_TYPE(node) == NodeType && Py_TYPE(plan) == PlanType && PyList_CheckExact(inputs) && SLOT(node, node_hooks) == Py_None &&
        SLOT(plan, plan_conjugate) == Py_False && (PyList_CheckExact(edges) || PyTuple_CheckExact(edges)))
        failed = SLOT(plan, plan_whole) == Py_True ? pull_whole(walk, plan, g, inputs, output, edges)
                                                   : pull_each(walk, plan, g, inputs, output, edges);
    Py_DECREF(plan);
    Py_DECREF(inputs);
    Py_DECREF(output);
    Py_DECREF(edges);
    if (failed > 0) failed = pull_other(walk, node, g);
    if (!failed && !walk->retain) {
        Py_XSETREF(SLOT(node, node_inputs), Py_NewRef(Py_None));
        Py_XSETREF(SLOT(node, node_output), Py_NewRef(Py_None));
    }
    return failed;
}

/* walk(nodes, arrived, retain, written, check, enter, found, shaped, deliver): propagate gradients to the leaves, latest op
   first. `check(node)` is called for nodes up to `written`, `enter(scope)` when the next op has another scope; `found(node, g)`
   returns the gradients of an op that is left to Python, `shaped(g, spec)` and `deliver(edge, g)` are Python's. */
static PyObject *walk(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 9 || !PyList_CheckExact(args[0]) || !PyDict_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "walk expects a list of nodes, a dict of gradients, and seven more arguments");
        return NULL;
    }
    Walk walk = {.arrived = args[1], .check = args[4], .enter = args[5], .found = args[6], .shaped = args[7], .deliver = args[8],
                 .retain = args[2] == Py_True};
    PyObject *scope = NULL;
    long long written = PyLong_AsLongLong(args[3]);
    int failed = written == -1 && PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]) && !failed; i++) failed = due_push(&walk, PyList_GET_ITEM(args[0], i));
    while (walk.count && !failed) {
        long long order = walk.due[0].order;
        PyObject *node = due_pop(&walk), *g = PyDict_GetItemWithError(walk.arrived, node);
        if (g == NULL) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a node of the tape has no gradient");
            failed = -1;
        } else {
            Py_INCREF(g);
            failed = PyDict_DelItem(walk.arrived, node);
        }
        if (!failed && order <= written && PyList_CheckExact(SLOT(node, node_inputs)))
            failed = done(PyObject_CallOneArg(walk.check, node));
        if (!failed && SLOT(node, node_scope) != scope) {
            Py_XSETREF(scope, Py_NewRef(SLOT(node, node_scope)));
            failed = done(PyObject_CallOneArg(walk.enter, scope));
        }
        if (!failed) failed = pull(&walk, node, g);
        Py_XDECREF(g);
        Py_DECREF(node);
    }
    while (walk.count) Py_DECREF(walk.due[--walk.count].node);
    PyMem_Free(walk.due);
    Py_XDECREF(scope);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* One form of a trace (TraceForm in traces.py): the expected roles of its instructions' elements, concatenated. */
enum { TOKEN, MADE, GIVEN, SAME, FIXED, HOLE, REST };

typedef struct {
    char role;
    int which; /* MADE, GIVEN: the register it names; SAME: the register it must equal; FIXED: a value; HOLE: which */
} Element;

typedef struct {
    PyObject_HEAD
    PyObject *number, *values;   /* the trace's number, and its constant numbers */
    Py_ssize_t length, elements;   /* number of pieces, and of elements in them */
    int registers, made, holes, live, rest;
    Element *element;
    int *alive; /* the registers of live results */
} Form;

static PyObject *form_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *number, *elements, *values, *alive;
    Py_ssize_t length;
    int made, given, holes;
    if (!PyArg_ParseTuple(args, "OnO!O!O!iii:Form", &number, &length, &PyList_Type, &elements, &PyTuple_Type, &values,
                          &PyTuple_Type, &alive, &made, &given, &holes))
        return NULL;
    Form *self = (Form *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->number = Py_NewRef(number);
    self->values = Py_NewRef(values);
    self->length = length;
    self->made = made;
    self->registers = made + given;
    self->holes = holes;
    self->elements = PyList_GET_SIZE(elements);
    self->live = (int)PyTuple_GET_SIZE(alive);
    self->element = PyMem_Calloc(self->elements + 1, sizeof(Element));
    self->alive = PyMem_Calloc(self->live + 1, sizeof(int));
    if (self->element == NULL || self->alive == NULL) goto failed;
    for (Py_ssize_t i = 0; i < self->elements; i++) {
        int role, which;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(elements, i), "ii", &role, &which)) goto failed;
        int bound = role == FIXED ? (int)PyTuple_GET_SIZE(values) : role == HOLE ? holes : self->registers;
        if (role < TOKEN || role > REST || which < 0 || (role != TOKEN && role != REST && which >= bound)) {
            PyErr_SetString(PyExc_ValueError, "an element outside of the form");
            goto failed;
        }
        self->element[i] = (Element){(char)role, which};
        self->rest += role == REST;
    }
    for (int i = 0; i < self->live; i++) {
        self->alive[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(alive, i));
        if (self->alive[i] < 0 || self->alive[i] >= made) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a result outside of the form");
            goto failed;
        }
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void form_dealloc(Form *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->number);
    Py_XDECREF(self->values);
    PyMem_Free(self->element);
    PyMem_Free(self->alive);
    type->tp_free(self);
    Py_DECREF(type);
}

static int equal(PyObject *a, PyObject *b) { return a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ); }

/* Whether these are the same number, bit for bit (`same_bits` of gt/program/code.py): 0.0 and -0.0 are equal, and nans differ. */
static int same_number(PyObject *a, PyObject *b) {
    if (!PyFloat_CheckExact(a) || !PyFloat_CheckExact(b)) return Py_TYPE(a) == Py_TYPE(b) ? equal(a, b) : 0;
    return memcmp(&((PyFloatObject *)a)->ob_fval, &((PyFloatObject *)b)->ob_fval, sizeof(double)) == 0;
}

/* Whether inputs are distinct and older than all results; ids grow. */
static int apart(PyObject **registers, int made, int n) {
    long long first = LLONG_MAX;
    for (int i = 0; i < n; i++)
        if (!PyLong_CheckExact(registers[i])) return 0;
    for (int i = 0; i < made; i++) {
        long long id = PyLong_AsLongLong(registers[i]);
        if (id == -1 && PyErr_Occurred()) return -1;
        if (id < first) first = id;
    }
    PyObject *seen = PySet_New(NULL);
    if (seen == NULL) return -1;
    int fine = 1;
    for (int i = made; i < n && fine == 1; i++) {
        long long id = PyLong_AsLongLong(registers[i]);
        if ((id == -1 && PyErr_Occurred()) || PySet_Add(seen, registers[i]) < 0)
            fine = -1;
        else if (id >= first)
            fine = 0;
    }
    if (fine == 1 && PySet_GET_SIZE(seen) != n - made) fine = 0;
    Py_DECREF(seen);
    return fine;
}

/* call(pieces): the call for these pieces and the ids still to be freed; None if they do not have this form. */
static PyObject *form_call(Form *self, PyObject *pieces) {
    if (!PyList_CheckExact(pieces) || PyList_GET_SIZE(pieces) != self->length) Py_RETURN_NONE;
    PyObject **registers = PyMem_Calloc(self->registers + self->holes + 1, sizeof(PyObject *)), *result = NULL;
    PyObject *rest = PyTuple_New(self->rest), *call = NULL;
    if (registers == NULL || rest == NULL) goto done;
    PyObject **holes = registers + self->registers;
    Py_ssize_t at = 0, left = 0;
    for (Py_ssize_t i = 0; i < self->length; i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        Py_ssize_t n = PyTuple_GET_SIZE(piece);
        if (at + n > self->elements || self->element[at].role != TOKEN) goto other;
        for (Py_ssize_t k = 1; k < n; k++) {
            PyObject *value = PyTuple_GET_ITEM(piece, k);
            Element element = self->element[at + k];
            int same = 1;
            switch (element.role) {
                case MADE: case GIVEN: registers[element.which] = value; break;
                case SAME: same = registers[element.which] != NULL ? equal(value, registers[element.which]) : 0; break;
                case FIXED: same = same_number(value, PyTuple_GET_ITEM(self->values, element.which)); break;
                case HOLE:
                    if (holes[element.which] == NULL) holes[element.which] = value;
                    else same = same_number(value, holes[element.which]);
                    break;
                case REST: PyTuple_SET_ITEM(rest, left++, Py_NewRef(value)); break;
                default: goto other; /* the instruction is longer than the form's */
            }
            if (same < 0) goto done;
            if (!same) goto other;
        }
        at += n;
    }
    if (at != self->elements) goto other;
    int fine = apart(registers, self->made, self->registers);
    if (fine < 0) goto done;
    if (!fine) goto other;
    int given = self->registers - self->made;
    call = PyTuple_New(1 + self->live + given + self->holes);
    if (call == NULL) goto done;
    PyTuple_SET_ITEM(call, 0, Py_NewRef(self->number));
    for (int i = 0; i < self->live; i++) PyTuple_SET_ITEM(call, 1 + i, Py_NewRef(registers[self->alive[i]]));
    for (int i = 0; i < given + self->holes; i++) PyTuple_SET_ITEM(call, 1 + self->live + i, Py_NewRef(registers[self->made + i]));
    result = PyTuple_Pack(2, call, rest);
    goto done;
other:
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(call);
    Py_XDECREF(rest);
    PyMem_Free(registers);
    return result;
}

static PyMethodDef form_methods[] = {
    {"call", (PyCFunction)form_call, METH_O, "The call for these pieces and the ids still to be freed, or None."},
    {NULL}};
static PyType_Slot form_slots[] = {
    {Py_tp_doc, "A trace as it comes in practice."}, {Py_tp_new, form_new}, {Py_tp_dealloc, form_dealloc},
    {Py_tp_methods, form_methods}, {0, NULL}};
static PyType_Spec form_spec = {"gt.client._native.Form", sizeof(Form), 0, Py_TPFLAGS_DEFAULT, form_slots};

/* Living tensors */

typedef struct {
    PyObject *types, *found;
} Search;

static int search_visit(PyObject *object, void *arg) {
    Search *search = arg;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(search->types); i++)
        if ((PyObject *)Py_TYPE(object) == PyTuple_GET_ITEM(search->types, i)) return PyList_Append(search->found, object);
    return 0;
}

/* As gc.get_referents, without a list of the millions that are of other types. */
static PyObject *referents(PyObject *module, PyObject *args) {
    PyObject *objects;
    Search search;
    if (!PyArg_ParseTuple(args, "O!O!:referents", &PyList_Type, &objects, &PyTuple_Type, &search.types)) return NULL;
    if ((search.found = PyList_New(0)) == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse != NULL && PyObject_IS_GC(object) && traverse(object, search_visit, &search)) {
            Py_DECREF(search.found);
            return NULL;
        }
    }
    return search.found;
}

/* Setting up */

static int slot_of(PyTypeObject *type, const char *name, Py_ssize_t *offset) {
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    if (descriptor == NULL) return -1;
    int found = Py_TYPE(descriptor) == &PyMemberDescr_Type && ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX;
    if (found)
        *offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot: GT_NATIVE=0 does without the part in C", type->tp_name, name);
    Py_DECREF(descriptor);
    return found ? 0 : -1;
}

static PyObject *setup(PyObject *module, PyObject *args) {
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!:setup", &PyType_Type, &TensorType, &PyType_Type, &NodeType, &PyType_Type,
                          &KnownType, &PyType_Type, &ScopeType, &PyType_Type, &PlanType, &PyType_Type, &PortType))
        return NULL;
    struct { PyTypeObject *type; const char *name; Py_ssize_t *offset; } slots[] = {
        {TensorType, "handle", &tensor_handle}, {TensorType, "requires_grad", &tensor_requires_grad},
        {TensorType, "node", &tensor_node}, {TensorType, "grad", &tensor_grad}, {TensorType, "hooks", &tensor_hooks},
        {TensorType, "base", &tensor_base}, {TensorType, "how", &tensor_how},
        {TensorType, "made", &tensor_made}, {KnownType, "view", &known_view}, {KnownType, "unseen", &known_unseen}, {KnownType, "floats", &known_floats}, {KnownType, "number", &known_number}, {KnownType, "out", &known_out},
        {KnownType, "outs", &known_outs}, {KnownType, "differentiable", &known_differentiable},
        {KnownType, "pulls", &known_pulls}, {ScopeType, "session", &scope_session}, {ScopeType, "kinds", &scope_kinds},
        {ScopeType, "origin", &scope_origin}, {ScopeType, "grad", &scope_grad}, {PlanType, "keep", &plan_keep},
        {PlanType, "keeps_output", &plan_keeps_output}, {PlanType, "pulls", &plan_pulls}, {PlanType, "whole", &plan_whole},
        {PlanType, "conjugate", &plan_conjugate}, {PlanType, "ins", &plan_ins}, {PlanType, "main", &plan_main},
        {PlanType, "function", &plan_function}, {PlanType, "settings", &plan_settings}, {NodeType, "known", &node_known},
        {NodeType, "plan", &node_plan}, {NodeType, "inputs", &node_inputs}, {NodeType, "edges", &node_edges},
        {NodeType, "output", &node_output}, {NodeType, "scope", &node_scope}, {NodeType, "order", &node_order},
        {NodeType, "hooks", &node_hooks}, {PortType, "node", &port_node}, {PortType, "index", &port_index}};
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
        if (slot_of(slots[i].type, slots[i].name, slots[i].offset) < 0) return NULL;
    PyTypeObject *types[] = {TensorType, NodeType, KnownType, ScopeType, PlanType, PortType};
    for (int i = 0; i < 6; i++) Py_INCREF(types[i]); /* never released: this module is never unloaded */
    Py_RETURN_NONE;
}

/* `Tensor(2, 3)` and `Tensor([1.0])` of users: a call whose first argument is not a handle calls a Python function, any other
   call the original constructor of the class. */
static vectorcallfunc tensor_construct;
static PyObject *tensor_of_data;

static PyObject *tensor_call(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *names) {
    int own = PyVectorcall_NARGS(nargsf) > 0 && (Py_TYPE(args[0]) == HandleType || args[0] == Py_None);
    return own ? tensor_construct(type, args, nargsf, names) : PyObject_Vectorcall(tensor_of_data, args, nargsf, names);
}

static PyObject *construct(PyObject *module, PyObject *function) {
    if (TensorType == NULL || TensorType->tp_vectorcall == NULL) {
        PyErr_SetString(PyExc_TypeError, "Tensor has no constructor to replace: GT_NATIVE=0 does without the part in C");
        return NULL;
    }
    if (TensorType->tp_vectorcall != tensor_call) {
        tensor_construct = TensorType->tp_vectorcall;
        TensorType->tp_vectorcall = tensor_call;
        PyType_Modified(TensorType);
    }
    Py_XSETREF(tensor_of_data, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"referents", referents, METH_VARARGS, "The objects of these types that these objects refer to."},
    {"construct", construct, METH_O, "Register the function that makes a tensor of data or sizes."},
    {"foreach", (PyCFunction)(void (*)(void))foreach, METH_FASTCALL, "An op on lists, or NotImplemented where it is Python's."},
    {"parameters", (PyCFunction)(void (*)(void))parameters, METH_FASTCALL, "The parameters in a tree of modules, each once."},
    {"overwrite", (PyCFunction)(void (*)(void))overwrite, METH_FASTCALL, "Give variables other values; which are Python's."},
    {"apply", (PyCFunction)(void (*)(void))apply, METH_FASTCALL, "The results of an op."},
    {"origin", origin_, METH_NOARGS, "The user's line: its code object and the offset in it."},
    {"otherwise", otherwise, METH_O, "Register the function for all other operands."},
    {"walk", (PyCFunction)(void (*)(void))walk, METH_FASTCALL, "Take gradients along the tape, latest op first."},
    {"setup", setup, METH_VARARGS, "Register the types."},
    {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "gt.client._native", SOURCE, -1, methods};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition), *op = NULL, *form = NULL, *field = NULL, *place = NULL;
    if (module == NULL) return NULL;
    zero = PyLong_FromLong(0);
    nothing = Py_NewRef(Py_NotImplemented);
    empty = PyTuple_New(0);
    name_due = PyUnicode_InternFromString("due");
    name_module = PyUnicode_InternFromString("__name__");
    name_foreach = PyUnicode_InternFromString("foreach");
    static const char *const of_modules[3] = {"_members", "named_modules", "_own_parameters"};
    for (int i = 0; i < 3; i++)
        if ((tree_names[i] = PyUnicode_InternFromString(of_modules[i])) == NULL) return NULL;
    StreamType = (PyTypeObject *)PyType_FromSpec(&stream_spec);
    HandleType = (PyTypeObject *)PyType_FromSpec(&handle_spec);
    op = PyType_FromSpec(&op_spec);
    form = PyType_FromSpec(&form_spec);
    field = PyType_FromSpec(&field_spec);
    place = PyType_FromSpec(&here_spec);
    HolderType = (PyTypeObject *)PyType_FromSpec(&holder_spec);
    TableType = (PyTypeObject *)PyType_FromSpecWithBases(&table_spec, (PyObject *)&PyDict_Type);
    here = place != NULL ? PyObject_CallNoArgs(place) : NULL;
    Py_XDECREF(place);
    if (here == NULL || PyModule_AddObjectRef(module, "HERE", here) < 0 || TableType == NULL || HolderType == NULL ||
        PyModule_AddObjectRef(module, "Table", (PyObject *)TableType) < 0 || zero == NULL || empty == NULL || name_due == NULL || name_module == NULL || name_foreach == NULL || StreamType == NULL ||
        HandleType == NULL || op == NULL || form == NULL || field == NULL || PyModule_AddObjectRef(module, "Form", form) < 0 ||
        PyModule_AddObjectRef(module, "Field", field) < 0 ||
        PyModule_AddObjectRef(module, "Stream", (PyObject *)StreamType) < 0 ||
        PyModule_AddObjectRef(module, "Handle", (PyObject *)HandleType) < 0 || PyModule_AddObjectRef(module, "Op", op) < 0) {
        Py_XDECREF(op);
        Py_XDECREF(form);
        Py_XDECREF(field);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(op);
    Py_DECREF(form);
    Py_DECREF(field);
    return module;
}
