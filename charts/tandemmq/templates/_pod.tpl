{{/* What all pods share, and how the values of several levels become one pod. */}}

{{/* Options of a pod as YAML: (list options…), each in the form of `pod` or null, the last one nearest. */}}
{{- define "tandemmq.podOptions" -}}
{{- $options := dict "labels" dict "annotations" dict "affinity" dict }}
{{- range . }}{{ $options = mergeOverwrite $options (deepCopy (default dict .)) }}{{ end }}
{{- toYaml $options }}
{{- end }}

{{/* metadata of a pod template: (list root component options labels annotations). */}}
{{- define "tandemmq.podMetadata" -}}
{{- $root := index . 0 }}{{ $options := index . 2 }}
labels:
  {{- include "tandemmq.selector" (list $root (index . 1)) | nindent 2 }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  app.kubernetes.io/part-of: tandemmq
  {{- with mergeOverwrite (deepCopy $root.Values.commonLabels) $options.labels (index . 3) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mergeOverwrite (deepCopy $root.Values.commonAnnotations) $options.annotations (index . 4) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Fields of a pod's spec: (list root options affinity spread), the last two the chart's own. */}}
{{- define "tandemmq.podSpec" -}}
{{- $root := index . 0 }}{{ $options := index . 1 -}}
enableServiceLinks: false
{{- with concat (default list $root.Values.global.imagePullSecrets) (default list $root.Values.image.pullSecrets) | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $options.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite (index . 2) $options.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default (index . 3) $options.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "priorityClassName" "schedulerName" "runtimeClassName" "dnsConfig" "hostAliases" "initContainers" }}
{{- with index $options $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fields of the main container: (list root options image). */}}
{{- define "tandemmq.container" -}}
{{- $root := index . 0 }}{{ $options := index . 1 -}}
image: {{ include "tandemmq.image" (list $root (index . 2)) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
# A pod that does not start says why in `kubectl describe`.
terminationMessagePolicy: FallbackToLogsOnError
{{- with $options.containerSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $options.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $root.Values.diagnosticMode.enabled }}
command: [sleep, infinity]
{{- end }}
{{- end }}

{{/* The chart's affinity between pods of a label set: (list rule labels). */}}
{{- define "tandemmq.antiAffinity" -}}
{{- $rule := index . 0 }}
{{- if eq $rule "hard" }}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- index . 1 | nindent 10 }}
{{- else if eq $rule "soft" }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- index . 1 | nindent 12 }}
{{- end }}
{{- end }}

{{/*
A strategic merge, as JSON with the one key `value`: (list base patch). Maps are joined, null removes, and lists whose
new items all have a mountPath, a containerPort or a name are joined by it; other lists are replaced.
*/}}
{{- define "tandemmq.merged" -}}
{{- $base := index . 0 }}{{ $patch := index . 1 }}{{ $result := $patch }}
{{- if and (kindIs "map" $base) (kindIs "map" $patch) }}
  {{- $result = deepCopy $base }}
  {{- range $key, $value := $patch }}
    {{- if kindIs "invalid" $value }}
      {{- $_ := unset $result $key }}
    {{- else }}
      {{- $_ := set $result $key (include "tandemmq.merged" (list (get $base $key) $value) | fromJson).value }}
    {{- end }}
  {{- end }}
{{- else if and (kindIs "slice" $base) (kindIs "slice" $patch) }}
  {{- $id := "" }}
  {{- range $candidate := list "name" "containerPort" "mountPath" }}
    {{- $all := true }}
    {{- range $patch }}{{ if not (and (kindIs "map" .) (hasKey . $candidate)) }}{{ $all = false }}{{ end }}{{ end }}
    {{- if $all }}{{ $id = $candidate }}{{ end }}
  {{- end }}
  {{- if $id }}
    {{- $result = list }}
    {{- $news := dict }}
    {{- range $patch }}{{ $_ := set $news (get . $id | toString) . }}{{ end }}
    {{- range $base }}
      {{- $key := get . $id | toString }}
      {{- if hasKey $news $key }}
        {{- $result = append $result (include "tandemmq.merged" (list . (get $news $key)) | fromJson).value }}
        {{- $_ := unset $news $key }}
      {{- else }}
        {{- $result = append $result . }}
      {{- end }}
    {{- end }}
    {{- range $patch }}{{ if hasKey $news (get . $id | toString) }}{{ $result = append $result . }}{{ end }}{{ end }}
  {{- end }}
{{- end }}
{{- dict "value" $result | toJson }}
{{- end }}

{{/* A pod template from its text and the patch in its options: (list text options). */}}
{{- define "tandemmq.patchedTemplate" -}}
{{- $template := fromYaml (index . 0) }}
{{- with $template.Error }}{{ fail (printf "the pod template is no YAML: %s" .) }}{{ end }}
{{- toYaml (include "tandemmq.merged" (list $template (default dict (index . 1).template)) | fromJson).value }}
{{- end }}
